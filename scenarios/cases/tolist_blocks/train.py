"""LoRA-like training of a diffusion transformer whose eager blocks each read the documents' bounds from the GPU, and
again when checkpointing runs them a second time.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch.utils.checkpoint import checkpoint

from scenarios.support.run import Run, main


def body(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The elementwise part before each half of a block, in float32 as the published one is."""
    y = x.float()
    y = (y - y.mean(-1, keepdim=True)) * torch.rsqrt(y.var(-1, keepdim=True, unbiased=False) + 1e-6)
    return (y * (1.0 + scale.float()) + shift.float()).to(x.dtype)


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, in float32."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.change = torch.nn.Linear(width, 6 * width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def before(self, x: torch.Tensor, time: torch.Tensor, angles: torch.Tensor) -> list[torch.Tensor]:
        shift, scale, gate, *rest = self.change(torch.nn.functional.silu(time)).chunk(6, -1)
        q, k, v = self.qkv(body(x, shift, scale)).unflatten(-1, (3, -1, 64)).unbind(-3)
        return [turned(q, angles), turned(k, angles), v, gate, *rest]

    def afterwards(self, x: torch.Tensor, mixed: torch.Tensor, gate: torch.Tensor, shift, scale, gate2) -> torch.Tensor:
        x = x + gate * self.out(mixed.flatten(-2))
        inner = torch.nn.functional.gelu(self.up(body(x, shift, scale)), approximate="tanh")
        return x + gate2 * self.down(inner)

    def forward(self, x, time, angles, bounds) -> torch.Tensor:
        q, k, v, gate, *rest = self.before(x, time, angles)
        ends = bounds if isinstance(bounds, list) else bounds.tolist()
        parts = []
        for a, b in pairwise(ends):
            one = (part[:, a:b].transpose(1, 2) for part in (q, k, v))
            parts.append(torch.nn.functional.scaled_dot_product_attention(*one).transpose(1, 2))
        return self.afterwards(x, torch.cat(parts, 1), gate, *rest)


def train(run: Run) -> None:
    width, blocks, length, documents = run.pick((1024, 16, 3072, 3), (64, 2, 12, 3))
    torch.manual_seed(0)
    model = torch.nn.ModuleList(Block(width) for _ in range(blocks)).to(run.device, torch.bfloat16)
    for block in model:
        for name, weight in block.named_parameters():
            weight.requires_grad_("out" in name)  # few of the weights learn, as with adapters
        if run.fix in ("after", "compiled"):
            block.before, block.afterwards = torch.compile(block.before), torch.compile(block.afterwards)
    optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=1e-4, fused=not run.tiny)
    x = torch.randn(1, length, width, device=run.device, dtype=torch.bfloat16)
    time = torch.randn(1, 1, width, device=run.device, dtype=torch.bfloat16)
    angles = torch.rand(length, 1, 32, device=run.device)
    bounds = torch.linspace(0, length, documents + 1, device=run.device).long()
    for _ in run.steps():
        ends = bounds.tolist() if run.fix in ("after", "one_read") else bounds
        y = x.requires_grad_()
        for block in model:
            y = checkpoint(block, y, time, angles, ends, use_reentrant=False)
        loss = y.float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        x.grad = None


if __name__ == "__main__":
    main(train)
