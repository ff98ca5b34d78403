"""Compiled blocks that count their calls in a dictionary and scale by the count: torch.compile guards on every count.

Until its limit of recompilations dynamo compiles again in each of the first steps, and then runs the blocks eagerly.
"""

from __future__ import annotations

import torch

from scenarios.support.planted import SMALL, Block, Model
from scenarios.support.run import Run, main


class Counting(torch.nn.Module):
    """A block and how often it ran, as a Python number or as a tensor on the GPU."""

    def __init__(self, block: Block, on_gpu: bool) -> None:
        super().__init__()
        self.block, self.on_gpu = block, on_gpu
        self.state = {"calls": 0}
        self.register_buffer("calls", torch.zeros((), dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.on_gpu:
            self.calls += 1.0
            return self.block(x) * (1.0 + 1e-6 * self.calls).to(x.dtype)
        self.state["calls"] += 1
        return self.block(x) * (1.0 + 1e-6 * self.state["calls"])


def train(run: Run) -> None:
    torch.manual_seed(0)
    width, rows, length = run.pick(SMALL, (64, 2, 8))
    torch._dynamo.config.recompile_limit = 3
    model = Model(width, run.pick(8, 2), None)
    model.blocks = torch.nn.ModuleList(Counting(block, run.fix == "tensor") for block in model.blocks)
    model.to(run.device, torch.bfloat16)
    for block in model.blocks:
        block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    tokens = torch.randint(0, 8192, (rows, length), device=run.device)
    for _ in run.steps():
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
