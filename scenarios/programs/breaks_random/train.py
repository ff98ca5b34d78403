"""A compiled model that draws a scale with Python's random numbers in each block"""

from __future__ import annotations

import random

import torch

from scenarios.support.planted import train_compiled
from scenarios.support.run import Run, main


@torch._dynamo.disable
def scale(number: int) -> float:
    return 1.0 + 1e-3 * random.random() / (number + 1)


def planted(x: torch.Tensor, number: int) -> torch.Tensor:
    return x * torch.tensor(scale(number), device=x.device, dtype=x.dtype)


def train(run: Run) -> None:
    train_compiled(run, planted, None)


if __name__ == "__main__":
    main(train)
