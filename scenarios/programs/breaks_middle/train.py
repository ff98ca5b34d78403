"""A compiled model of 12 blocks that checks once, in the middle, whether its hidden states are finite"""

from __future__ import annotations

import torch

from scenarios.support.planted import Model
from scenarios.support.run import Run, main


class Checked(torch.nn.Module):
    """`on_gpu`: what is not finite becomes zero, without a look at it."""

    def __init__(self, inner: Model, on_gpu: bool) -> None:
        super().__init__()
        self.inner, self.on_gpu = inner, on_gpu

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.inner.embed(tokens)
        half = len(self.inner.blocks) // 2
        for block in self.inner.blocks[:half]:
            x = block(x)
        if self.on_gpu:
            x = torch.where(x.isfinite(), x, torch.zeros_like(x))
        elif not x.isfinite().all():
            x = torch.nan_to_num(x)
        for block in self.inner.blocks[half:]:
            x = block(x)
        return self.inner.head(x)


def train(run: Run) -> None:
    torch.manual_seed(0)
    width, rows, length = run.pick((1024, 8, 512), (64, 2, 8))
    model = Checked(Model(width, run.pick(12, 2), None), run.fix == "removed").to(run.device, torch.bfloat16)
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
