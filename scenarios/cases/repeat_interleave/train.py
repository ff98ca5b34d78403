"""Tokens sent to experts by `repeat_interleave` with counts on the GPU: the size of its result is read in each
layer.
"""

from __future__ import annotations

import torch

from scenarios.support.run import Run, main


class Experts(torch.nn.Module):
    """Top-2 of 8 experts, run as one batched matrix multiplication over their places."""

    def __init__(self, width: int, inner: int, experts: int, room: int) -> None:
        super().__init__()
        self.experts, self.room = experts, room
        self.router = torch.nn.Linear(width, experts, bias=False)
        self.up = torch.nn.Parameter(torch.randn(experts, width, inner) * width**-0.5)
        self.down = torch.nn.Parameter(torch.randn(experts, inner, width) * inner**-0.5)
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, known: bool) -> torch.Tensor:
        y = self.norm(x)
        weights, chosen = self.router(y).float().softmax(-1).topk(2, -1)
        order = chosen.flatten().argsort(stable=True)
        counts = (
            torch.bincount(chosen.flatten(), minlength=self.experts)
            if not known
            else (
                torch.zeros(self.experts, dtype=torch.long, device=x.device).scatter_add_(
                    0, chosen.flatten(), torch.ones_like(chosen.flatten())
                )
            )
        )
        numbers = torch.arange(self.experts, device=x.device)
        if known:
            owner = torch.repeat_interleave(numbers, counts, output_size=order.numel())
        else:
            owner = torch.repeat_interleave(numbers, counts)
        places = torch.arange(order.numel(), device=x.device) - (counts.cumsum(0) - counts)[owner]
        slot = owner * self.room + places.clamp(max=self.room - 1)
        held = torch.zeros(self.experts * self.room, x.shape[-1], device=x.device, dtype=x.dtype)
        held = held.index_copy(0, slot, y[order // 2]).view(self.experts, self.room, -1)
        out = torch.bmm(torch.nn.functional.gelu(torch.bmm(held, self.up)), self.down).flatten(0, 1)[slot]
        return x.index_add(0, order // 2, out * weights.flatten()[order, None].to(x.dtype))


def train(run: Run) -> None:
    width, inner, layers, tokens = run.pick((512, 1024, 16, 2048), (32, 64, 2, 16))
    torch.manual_seed(0)
    model = torch.nn.ModuleList(Experts(width, inner, 8, tokens) for _ in range(layers)).to(run.device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    x = torch.randn(tokens, width, device=run.device, dtype=torch.bfloat16)
    for _ in run.steps():
        y = x
        for layer in model:
            y = layer(y, run.fix == "after")
        loss = y.float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
