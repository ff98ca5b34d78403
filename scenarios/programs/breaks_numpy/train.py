"""A compiled model that clips activations at a percentile, which NumPy computes of a sample of them on the CPU"""

from __future__ import annotations

import numpy as np
import torch

from scenarios.support.planted import train_compiled
from scenarios.support.run import Run, main


def planted(x: torch.Tensor, number: int) -> torch.Tensor:
    sample = np.abs(x.detach()[:, ::16].float().cpu().numpy()).ravel()
    rank = 999 * len(sample) // 1000
    limit = float(np.partition(sample, rank)[rank])
    return x.clamp(-limit, limit)


def without(x: torch.Tensor, number: int) -> torch.Tensor:
    limit = 4.0 * x.detach()[:, ::16].float().square().mean().sqrt().to(x.dtype)
    return torch.minimum(torch.maximum(x, -limit), limit)


def train(run: Run) -> None:
    train_compiled(run, planted, without, blocks=4)


if __name__ == "__main__":
    main(train)
