"""A compiled model whose blocks are recomputed in the backward pass, with a print of progress in each"""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from scenarios.support.planted import Model
from scenarios.support.run import Run, main


class Checkpointed(torch.nn.Module):
    def __init__(self, inner: Model, quiet: bool) -> None:
        super().__init__()
        self.inner, self.quiet = inner, quiet

    def one(self, number: int, x: torch.Tensor) -> torch.Tensor:
        if not self.quiet:
            print(end="")
        return self.inner.blocks[number](x)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.inner.embed(tokens)
        for number in range(len(self.inner.blocks)):
            x = checkpoint(self.one, number, x, use_reentrant=False)
        return self.inner.head(x)


def train(run: Run) -> None:
    torch.manual_seed(0)
    width, rows, length = run.pick((512, 4, 256), (64, 2, 8))
    model = Checkpointed(Model(width, run.pick(6, 2), None), run.fix == "removed").to(run.device, torch.bfloat16)
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
