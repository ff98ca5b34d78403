"""A compiled model that logs shapes in every second block"""

from __future__ import annotations

import logging

import torch

from scenarios.support.planted import train_compiled
from scenarios.support.run import Run, main

LOG = logging.getLogger("blocks")


def planted(x: torch.Tensor, number: int) -> torch.Tensor:
    LOG.info("block %d: %s", number, tuple(x.shape))
    print(end="")
    return x


def train(run: Run) -> None:
    train_compiled(run, planted, None, every=2)


if __name__ == "__main__":
    main(train)
