"""QLoRA on Qwen3-32B with unsloth and TRL: NF4 weights, rank 16, batches of 32 samples, a step each.

8 of the 64 layers. Alpaca-like samples of 117 tokens on average, or with `--data long` texts of 861 tokens on average,
cut at 2048; unsloth joins the samples of a batch into one row without padding.
"""

from __future__ import annotations

from scenarios.support import unsloth_stack
from scenarios.support.run import Run, main

LAYERS = 8


def train(run: Run) -> None:
    unsloth_stack.start(run)
    unsloth_stack.train(
        run,
        "qwen3-32b",
        batch=32,
        data=run.data or "alpaca",
        layers=LAYERS,
        checkpointing=run.fix != "no_checkpointing",
    )


if __name__ == "__main__":
    main(train)
