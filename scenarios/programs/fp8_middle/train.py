"""Eight gated MLPs of width 2048 and 5632, 8192 tokens. Compiled, in bf16."""

from __future__ import annotations

from scenarios.support.low_precision import train_linear
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    train_linear(run, width=2048, inner=5632, layers=8, tokens=8192)


if __name__ == "__main__":
    main(train)
