"""LoRA on Llama-3.1-8B as llama-cookbook's finetuning.py runs it on one GPU with `--use_peft`: rank 8 on queries and
values, bfloat16, without checkpointing; batch 1, context 4096, samples packed to full length.

Its default batch of 4 needs about 130 GiB, and all weights as its other default has it needs more than that.
"""

from __future__ import annotations

from scenarios.support import cookbook
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    cookbook.finetune_on_one_gpu(run, "llama-3.1-8b", batch=1, lora=True, casts=run.fix != "bf16_adapters")


if __name__ == "__main__":
    main(train)
