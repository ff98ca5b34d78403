"""A compiled model with an attribute that counts steps and is read in forward: torch.compile guards on its value.

Until its limit of recompilations dynamo compiles again in each of the first steps, and then runs the block eagerly.
"""

from __future__ import annotations

import torch

from scenarios.support.planted import Model
from scenarios.support.run import Run, main


class Scheduled(torch.nn.Module):
    """Blocks whose strength grows with the number of the step. `on_gpu`: kept in a tensor."""

    def __init__(self, inner: Model, on_gpu: bool) -> None:
        super().__init__()
        self.inner, self.on_gpu, self.strength = inner, on_gpu, 0
        self.register_buffer("held", torch.zeros(()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.inner.embed(tokens)
        by = self.held if self.on_gpu else self.strength * 1e-6
        for block in self.inner.blocks:
            x = block(x) * (1.0 + by)
        return self.inner.head(x)

    def advance(self) -> None:
        if self.on_gpu:
            self.held += 1e-6
        else:
            self.strength += 1


def train(run: Run) -> None:
    torch.manual_seed(0)
    width, rows, length = run.pick((512, 4, 256), (64, 2, 8))
    torch._dynamo.config.recompile_limit = 4
    model = Scheduled(Model(width, run.pick(8, 2), None), run.fix in ("tensor", "tensor_graphs")).to(
        run.device, torch.bfloat16
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    tokens = torch.randint(0, 8192, (rows, length), device=run.device)
    forward = torch.compile(model, mode="reduce-overhead" if run.fix == "tensor_graphs" else None)
    for _ in run.steps():
        loss = torch.nn.functional.cross_entropy(forward(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        model.advance()


if __name__ == "__main__":
    main(train)
