"""A compiled model whose blocks read a value to decide whether to clamp"""

from __future__ import annotations

import torch

from scenarios.support.planted import train_compiled
from scenarios.support.run import Run, main


def planted(x: torch.Tensor, number: int) -> torch.Tensor:
    return x.clamp(-50.0, 50.0) if x.detach().abs().max().item() > 50.0 else x


def without(x: torch.Tensor, number: int) -> torch.Tensor:
    return x.clamp(-50.0, 50.0)


def train(run: Run) -> None:
    train_compiled(run, planted, without)


if __name__ == "__main__":
    main(train)
