"""TinyLlama-1.1B as llama-cookbook's finetuning.py trains it by default on one GPU: all weights, in bfloat16, without
checkpointing; batch 4, context 4096, samples packed to full length, AdamW with a learning rate of 1e-4.
"""

from __future__ import annotations

from scenarios.support import cookbook
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    cookbook.finetune_on_one_gpu(run, "tinyllama-1.1b", batch=4, lora=False)


if __name__ == "__main__":
    main(train)
