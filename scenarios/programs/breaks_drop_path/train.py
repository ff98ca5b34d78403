"""A compiled model with stochastic depth: Python's random numbers decide whether a block is left out"""

from __future__ import annotations

import random

import torch

from scenarios.support.planted import Model
from scenarios.support.run import Run, main

DROP = 0.15
"""Probability that a block is left out."""


class Deep(torch.nn.Module):
    """`on_gpu`: a random tensor scales what a block adds, with zero where it is left out."""

    def __init__(self, inner: Model, on_gpu: bool) -> None:
        super().__init__()
        self.inner, self.on_gpu = inner, on_gpu

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.inner.embed(tokens)
        for block in self.inner.blocks:
            if self.on_gpu:
                kept = (torch.rand(len(x), 1, 1, device=x.device) >= DROP).to(x.dtype)
                x = x + (block(x) - x) * kept
            elif random.random() >= DROP:
                x = block(x)
        return self.inner.head(x)


def train(run: Run) -> None:
    torch.manual_seed(0)
    random.seed(0)
    width, rows, length = run.pick((512, 4, 256), (64, 2, 8))
    model = Deep(Model(width, run.pick(8, 2), None), run.fix == "removed").to(run.device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    tokens = torch.randint(0, 8192, (rows, length), device=run.device)
    forward = torch.compile(model)
    for _ in run.steps():
        loss = torch.nn.functional.cross_entropy(forward(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
