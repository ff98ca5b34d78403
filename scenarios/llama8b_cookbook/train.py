"""LoRA on Llama-3.1-8B, cut to 8 of its 32 layers, as llama-cookbook's finetuning.py runs it: rank 8 on queries and
values, FSDP with one process, bfloat16, activation checkpointing; batch 1 (its default is 4), context 4096, samples
packed to full length.
"""

from __future__ import annotations

from scenarios.support import cookbook
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    cookbook.finetune(run, "llama-3.1-8b", batch=1, checkpointing=run.fix != "no_checkpointing", num_hidden_layers=8)


if __name__ == "__main__":
    main(train)
