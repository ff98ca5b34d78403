"""QLoRA on GPT-OSS 120B with unsloth and TRL, its experts one after another: NF4, rank 16, batches of 32 samples.

2 of the 36 layers, all 128 experts, 4 of them for each token. Alpaca-like samples of 117 tokens on average, padded to
the longest of their batch. Adapters are where unsloth's examples put them: on attention and on every expert.
"""

from __future__ import annotations

from scenarios.support import unsloth_stack
from scenarios.support.run import Run, main

LAYERS = 2


def train(run: Run) -> None:
    unsloth_stack.start(run, UNSLOTH_GPTOSS_GROUPED="1" if run.fix == "grouped" else "0")
    unsloth_stack.train(run, "gpt-oss-120b", batch=32, data=run.data or "alpaca", layers=LAYERS)


if __name__ == "__main__":
    main(train)
