"""A compiled model whose activation is an autograd function that torch.compiler.disable keeps out of the graph"""

from __future__ import annotations

import math

import torch

from scenarios.support.planted import train_compiled
from scenarios.support.run import Run, main


class Squared(torch.autograd.Function):
    """Squared ReLU with a backward pass of its own, as a library writes it around its kernel."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        (positive,) = ctx.saved_tensors
        return 2.0 * positive * grad


@torch.compiler.disable
def kernel(x: torch.Tensor) -> torch.Tensor:
    return Squared.apply(x)


def planted(x: torch.Tensor, number: int) -> torch.Tensor:
    return x + kernel(x) / math.sqrt(x.shape[-1])


def without(x: torch.Tensor, number: int) -> torch.Tensor:
    return x + x.relu().square() / math.sqrt(x.shape[-1])


def train(run: Run) -> None:
    train_compiled(run, planted, without, blocks=6, size=(768, 8, 256))


if __name__ == "__main__":
    main(train)
