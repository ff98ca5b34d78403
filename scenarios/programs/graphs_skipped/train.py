"""A model compiled with CUDA graphs, which keeps a running mean of its logits in a tensor that the caller passes to it.

torch cannot record a graph that changes a tensor of the caller's, whose address may differ in the next step; it may
change a buffer. A scalar on the CPU in place of this mean ended in a segmentation fault (torch 2.11).
"""

from __future__ import annotations

import torch

from scenarios.support.planted import SMALL, Model
from scenarios.support.run import Run, main

VOCABULARY = 8192


class Averaged(torch.nn.Module):
    """Updates a running mean of the logits in place: its own, or the one it is given."""

    def __init__(self, inner: Model) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("average", torch.zeros(VOCABULARY))

    def forward(self, tokens: torch.Tensor, average: torch.Tensor | None = None) -> torch.Tensor:
        logits = self.inner(tokens)
        mean = self.average if average is None else average
        mean.lerp_(logits.detach().float().mean((0, 1)), 0.01)
        return logits


def train(run: Run) -> None:
    torch.manual_seed(0)
    width, rows, length = run.pick(SMALL, (64, 2, 8))
    inner = Model(width, run.pick(8, 2), None).to(run.device, torch.bfloat16)
    model = Averaged(inner).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    tokens = torch.randint(0, VOCABULARY, (rows, length), device=run.device)
    given = () if run.fix == "buffer" else (torch.zeros(VOCABULARY, device=run.device),)
    forward = torch.compile(model, mode="reduce-overhead")
    for _ in run.steps():
        loss = torch.nn.functional.cross_entropy(forward(tokens, *given).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
