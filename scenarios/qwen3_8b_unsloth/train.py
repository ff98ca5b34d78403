"""QLoRA on Qwen3-8B with unsloth and TRL: NF4 weights, rank 16, batches of 4 Alpaca-like samples, a step each.

All 36 layers, 117 tokens a sample on average; unsloth joins the samples of a batch into one row without padding, its
checkpointing and the 8-bit AdamW are those of its examples.
"""

from __future__ import annotations

from scenarios.support import unsloth_stack
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    unsloth_stack.start(run)
    unsloth_stack.train(run, "qwen3-8b", batch=32 if run.fix == "batch_32" else 4)


if __name__ == "__main__":
    main(train)
