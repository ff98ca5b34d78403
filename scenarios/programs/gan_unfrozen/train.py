"""Super-resolution with a discriminator: 32 pictures of 64 × 64 to 128 × 128, a generator of 8 residual blocks of 128
channels, bf16 autocast, channels_last.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import l1_loss, leaky_relu, softplus

from scenarios.support.run import Run, main


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * self.conv2(torch.relu(self.conv1(x)))


class Generator(nn.Module):
    """Small pictures → pictures twice as wide and high."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(blocks)))
        self.wide, self.last = nn.Conv2d(width, 2 * width, 3, padding=1), nn.Conv2d(width // 2, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(nn.functional.pixel_shuffle(self.wide(x + self.blocks(x)), 2))


class Discriminator(nn.Module):
    """Pictures → a score for each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = (3, width, 2 * width, 4 * width, 8 * width)
        self.convs = nn.ModuleList()
        for inside, outside in pairwise(widths):
            self.convs += [nn.Conv2d(inside, outside, 3, padding=1), nn.Conv2d(outside, outside, 4, 2, 1)]
        self.head = nn.Linear(widths[-1], 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = leaky_relu(conv(x), 0.2)
        return self.head(x.mean((2, 3)))


def train(run: Run) -> None:
    torch.manual_seed(0)
    batch, size, width, blocks, judging = run.pick((32, 64, 128, 8, 96), (2, 16, 8, 2, 4))
    once, detached, frozen = run.fix in ("once", "all"), run.fix in ("detached", "once", "all"), run.fix == "all"
    frozen |= run.fix == "frozen"
    generator = Generator(width, blocks).to(run.device, memory_format=torch.channels_last).train()
    judge = Discriminator(judging).to(run.device, memory_format=torch.channels_last).train()
    generates = torch.optim.Adam(generator.parameters(), lr=1e-4, fused=not run.tiny)
    judges = torch.optim.Adam(judge.parameters(), lr=1e-4, fused=not run.tiny)
    small = torch.rand(batch, 3, size, size, device=run.device).contiguous(memory_format=torch.channels_last)
    real = torch.rand(batch, 3, 2 * size, 2 * size, device=run.device).contiguous(memory_format=torch.channels_last)
    kind = run.device.split(":")[0]
    for _ in run.steps():
        judges.zero_grad(set_to_none=True)
        with torch.autocast(kind, torch.bfloat16):
            fake = generator(small)
            on_fake = judge(fake.detach() if detached else fake)
            loss = softplus(-judge(real).float()).mean() + softplus(on_fake.float()).mean()
        loss.backward()
        judges.step()

        generates.zero_grad(set_to_none=True)
        judge.requires_grad_(not frozen)
        with torch.autocast(kind, torch.bfloat16):
            if not once:
                fake = generator(small)
            loss = l1_loss(fake.float(), real) + 1e-3 * softplus(-judge(fake).float()).mean()
        loss.backward()
        generates.step()
        judge.requires_grad_(True)


if __name__ == "__main__":
    main(train)
