"""Super-resolution by a factor of four: EDSR (16 residual blocks, 64 channels) makes 192 × 192 pictures from 48 × 48,
16 a batch, with an L1 loss and a perceptual loss by the features of VGG-19, bf16 autocast.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision.models import vgg19

from scenarios.support.data import endless
from scenarios.support.run import Run, main

FEATURES = 35
"""Layers of VGG-19 up to the last convolution, whose output is compared before its activation."""
WEIGHT = 0.1
"""Of the perceptual loss."""


class Pictures(Dataset):
    """Pictures that were read before, small and large, values from 0 to 1."""

    def __init__(self, size: int, scale: int, count: int) -> None:
        self.large = torch.rand(count, 3, size * scale, size * scale)
        self.small = functional.avg_pool2d(self.large, scale)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        index %= len(self.large)
        return self.small[index], self.large[index]


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * self.second(functional.relu(self.first(x)))


class SuperResolution(nn.Module):
    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, channels, 3, padding=1)
        self.body = nn.Sequential(
            *(Block(channels) for _ in range(blocks)), nn.Conv2d(channels, channels, 3, padding=1)
        )
        doubled = (nn.Conv2d(channels, 4 * channels, 3, padding=1), nn.PixelShuffle(2))
        again = (nn.Conv2d(channels, 4 * channels, 3, padding=1), nn.PixelShuffle(2))
        self.tail = nn.Sequential(*doubled, *again, nn.Conv2d(channels, 3, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.head(x)
        return self.tail(x + self.body(x))


class PerceptualLoss(nn.Module):
    """The distance between VGG's features of two pictures."""

    def __init__(self, layers: int, fix: str) -> None:
        super().__init__()
        self.vgg = vgg19(weights=None).features[:layers].eval()
        if fix == "frozen":
            self.vgg.requires_grad_(False)
        self.fixed_target = fix == "target_no_grad"
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def features(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.vgg((pictures - self.mean) / self.std)

    def forward(self, made: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(not self.fixed_target):
            wanted = self.features(target)
        return functional.l1_loss(self.features(made), wanted)


def train(run: Run) -> None:
    torch.manual_seed(0)
    size, batch, channels, blocks, layers = run.pick((48, 16, 64, 16, FEATURES), (8, 2, 8, 2, 12))
    with torch.device(run.device):
        model, perceptual = SuperResolution(channels, blocks).train(), PerceptualLoss(layers, run.fix)
    if run.fix == "channels_last":
        model, perceptual = (part.to(memory_format=torch.channels_last) for part in (model, perceptual))
    loader = DataLoader(
        Pictures(size, 4, 8 * batch), batch, shuffle=False, num_workers=run.pick(4, 0), pin_memory=not run.tiny
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=not run.tiny)
    batches = endless(loader)
    for _ in run.steps():
        small, large = (pictures.to(run.device, non_blocking=True) for pictures in next(batches))
        if run.fix == "channels_last":
            small, large = (pictures.to(memory_format=torch.channels_last) for pictures in (small, large))
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            made = model(small)
            loss = functional.l1_loss(made, large) + WEIGHT * perceptual(made, large)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
