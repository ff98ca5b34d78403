"""A model compiled with CUDA graphs, which one scalar tensor on the CPU keeps it from"""

from __future__ import annotations

import torch

from scenarios.support.planted import SMALL, Model
from scenarios.support.run import Run, main


class Scaled(torch.nn.Module):
    """`scale`: a scalar by which the logits are multiplied, where it was made."""

    def __init__(self, inner: Model, device: str) -> None:
        super().__init__()
        self.inner = inner
        self.scale = torch.tensor(0.5, device=device)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.inner(tokens) * self.scale


def train(run: Run) -> None:
    torch.manual_seed(0)
    width, rows, length = run.pick(SMALL, (64, 2, 8))
    inner = Model(width, run.pick(8, 2), None).to(run.device, torch.bfloat16)
    model = Scaled(inner, run.device if run.fix == "on_gpu" else "cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    tokens = torch.randint(0, 8192, (rows, length), device=run.device)
    forward = torch.compile(model, mode="reduce-overhead")
    for _ in run.steps():
        loss = torch.nn.functional.cross_entropy(forward(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
