"""Four gated MLPs of width 4096 and 14,336, 1024 tokens. Compiled, in bf16."""

from __future__ import annotations

from scenarios.support.low_precision import train_linear
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    train_linear(run, width=4096, inner=14336, layers=4, tokens=1024)


if __name__ == "__main__":
    main(train)
