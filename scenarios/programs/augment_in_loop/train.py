"""A U-Net on 16 pictures of 256 × 256, bf16 autocast; each sample is turned, cropped and jittered on the CPU first."""

from __future__ import annotations

import math

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from scenarios.support.run import Run, main


class Scans(Dataset):
    """Pictures of bytes and the class of each of their pixels."""

    def __init__(self, size: int) -> None:
        rng = torch.Generator().manual_seed(0)
        coarse = torch.randint(0, 255, (32, 3, size // 8, size // 8), generator=rng, dtype=torch.uint8)
        self.pictures = coarse.repeat_interleave(8, 2).repeat_interleave(8, 3)
        self.labels = (self.pictures[:, 0] // 64).long()

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pictures[index % 32], self.labels[index % 32]


def conv(before: int, after: int) -> torch.nn.Sequential:
    layers = []
    for width in (before, after):
        layers += [torch.nn.Conv2d(width, after, 3, padding=1), torch.nn.BatchNorm2d(after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


class UNet(torch.nn.Module):
    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        wide = [width << i for i in range(depth)]
        self.down = torch.nn.ModuleList(conv(a, b) for a, b in zip([3, *wide], wide, strict=False))
        self.grow = torch.nn.ModuleList(torch.nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(wide[:-1]))
        self.up = torch.nn.ModuleList(conv(2 * w, w) for w in reversed(wide[:-1]))
        self.head = torch.nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            kept.append(x := block(functional.max_pool2d(x, 2) if kept else x))
        for grow, block, side in zip(self.grow, self.up, reversed(kept[:-1]), strict=True):
            x = block(torch.cat((grow(x), side), 1))
        return self.head(x)


def augment(pictures: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turns, scales, brightens and adds noise to samples of bytes, where they are, all of them at once."""
    count, _, size, _ = pictures.shape
    device = pictures.device
    angle = (torch.rand(count, device=device) - 0.5) * math.pi
    scale = 0.7 + 0.3 * torch.rand(count, device=device)
    cos, sin, zero = angle.cos() * scale, angle.sin() * scale, torch.zeros(count, device=device)
    theta = torch.stack((torch.stack((cos, -sin, zero), 1), torch.stack((sin, cos, zero), 1)), 1)
    grid = functional.affine_grid(theta, [count, 3, size, size], align_corners=False)
    x = functional.grid_sample(pictures.float() / 255.0, grid, align_corners=False)
    y = functional.grid_sample(labels[:, None].float(), grid, mode="nearest", align_corners=False)[:, 0].long()
    x = x * (0.8 + 0.4 * torch.rand(count, 1, 1, 1, device=device)) + 0.05 * torch.randn_like(x)
    return x.clamp(0, 1).sub(0.5).div(0.25), y


def one_by_one(pictures: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = [augment(picture[None], label[None]) for picture, label in zip(pictures, labels, strict=True)]
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def collate(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a worker: stacks and augments samples."""
    return one_by_one(*(torch.stack(each) for each in zip(*samples, strict=True)))


def train(run: Run) -> None:
    torch.manual_seed(0)
    size, batch, width, depth = run.pick((256, 16, 32, 4), (32, 2, 4, 2))
    inside = run.fix == "workers"
    loader = DataLoader(
        Scans(size), batch, num_workers=run.pick(8, 1) if inside else 0, pin_memory=not run.tiny,
        collate_fn=collate if inside else None,
    )  # fmt: skip
    model = UNet(width, depth, 4).to(run.device).train()
    if run.fix == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=not run.tiny)
    for _, (pictures, labels) in zip(run.steps(), loader, strict=False):
        if run.fix == "on_gpu":
            x, y = augment(pictures.to(run.device, non_blocking=True), labels.to(run.device, non_blocking=True))
        else:
            x, y = (pictures, labels) if inside else one_by_one(pictures, labels)
            x, y = x.to(run.device, non_blocking=True), y.to(run.device, non_blocking=True)
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            logits = model(x)
        loss = functional.cross_entropy(logits.float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
