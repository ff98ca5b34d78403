"""Twelve gated MLPs of width 1024 and 2816, 8192 tokens. Compiled, in bf16."""

from __future__ import annotations

from scenarios.support.low_precision import train_linear
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    train_linear(run, width=1024, inner=2816, layers=12, tokens=8192)


if __name__ == "__main__":
    main(train)
