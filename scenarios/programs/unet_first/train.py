"""A diffusion U-Net (3 levels of 128, 256 and 512 channels, 32 images of 64 × 64) in float32, as its first version."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from scenarios.support.run import Run, main

TIMES = 1000


class Block(nn.Module):
    """Two convolutions with a residual; the time is added between them."""

    def __init__(self, inside: int, outside: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inside), nn.Conv2d(inside, outside, 3, padding=1)
        self.time = nn.Linear(time, outside)
        self.norm2, self.conv2 = nn.GroupNorm(8, outside), nn.Conv2d(outside, outside, 3, padding=1)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        inner = self.conv1(functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.conv2(functional.silu(self.norm2(inner)))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(8, width), max(width // 64, 1)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, width, height, breadth = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(rows, 3, self.heads, width // self.heads, -1).mT.unbind(1)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.mT.reshape(rows, width, height, breadth))


class UNet(nn.Module):
    """Noisy images and times → the noise."""

    def __init__(self, width: int, levels: tuple[int, ...]) -> None:
        super().__init__()
        time = 4 * width
        self.width, self.embed = width, nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        widths = [width * level for level in levels]
        inside = width
        for wide in widths:
            self.down.append(nn.ModuleList([Block(inside, wide, time), Block(wide, wide, time),
                                            nn.Conv2d(wide, wide, 3, 2, 1)]))  # fmt: skip
            inside = wide
        self.middle = nn.ModuleList([Block(inside, inside, time), Attention(inside), Block(inside, inside, time)])
        for wide in reversed(widths):
            self.up.append(nn.ModuleList([nn.ConvTranspose2d(inside, wide, 4, 2, 1), Block(2 * wide, wide, time),
                                          Block(wide, wide, time)]))  # fmt: skip
            inside = wide
        self.norm, self.last = nn.GroupNorm(8, inside), nn.Conv2d(inside, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        turns = torch.exp(-math.log(1e4) * torch.arange(self.width // 2, device=x.device) / (self.width // 2))
        angles = times[:, None] * turns
        time = functional.silu(self.embed(torch.cat((angles.sin(), angles.cos()), 1)))
        x = self.first(x)
        kept = []
        for one, two, smaller in self.down:
            x = two(one(x, time), time)
            kept.append(x)
            x = smaller(x)
        one, attention, two = self.middle
        x = two(attention(one(x, time)), time)
        for larger, one, two in self.up:
            x = two(one(torch.cat((larger(x), kept.pop()), 1), time), time)
        return self.last(functional.silu(self.norm(x)))


def train(run: Run) -> None:
    torch.manual_seed(0)
    width, size, images = run.pick((128, 64, 32), (16, 16, 2))
    layout = torch.channels_last if "channels_last" in run.fix else torch.contiguous_format
    model = UNet(width, (1, 2, 4)).to(run.device, memory_format=layout).train()
    forward = torch.compile(model) if run.fix == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, TIMES, device=run.device), 0)
    pictures = torch.rand(images, 3, size, size, device=run.device) * 2 - 1
    for step in run.steps():
        times = torch.randint(0, TIMES, (images,), device=run.device)
        noise = torch.randn_like(pictures)
        share = kept[times][:, None, None, None]
        noisy = (share.sqrt() * pictures + (1 - share).sqrt() * noise).contiguous(memory_format=layout)
        with torch.autocast(run.device.split(":")[0], torch.bfloat16, enabled="autocast" in run.fix):
            found = forward(noisy, times)
        loss = functional.mse_loss(found.float(), noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main(train)
