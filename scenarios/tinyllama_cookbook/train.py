"""LoRA on TinyLlama-1.1B as llama-cookbook's finetuning.py runs it by default: rank 8 on queries and values, FSDP with
one process, bfloat16, activation checkpointing; batch 4, context 4096, samples packed to full length.
"""

from __future__ import annotations

from scenarios.support import cookbook
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    cookbook.finetune(run, "tinyllama-1.1b", batch=4, checkpointing=run.fix != "no_checkpointing")


if __name__ == "__main__":
    main(train)
