"""A small ResNet-like net on pictures that two workers decode from PNG and augment with numpy; batch 64, bf16
autocast.
"""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from scenarios.support.data import endless
from scenarios.support.run import Run, main


class Pictures(Dataset):
    """PNGs in memory; `decoded`: as arrays of bytes, decoded once."""

    def __init__(self, count: int, size: int, decoded: bool) -> None:
        rng = np.random.default_rng(0)
        base = [np.kron(rng.integers(0, 255, (size // 8, size // 8, 3), dtype=np.uint8), np.ones((8, 8, 1), np.uint8))
                for _ in range(16)]  # fmt: skip
        self.files = []
        for i in range(count):
            stream = io.BytesIO()
            noisy = base[i % 16] ^ rng.integers(0, 16, base[0].shape, dtype=np.uint8)
            Image.fromarray(noisy).save(stream, "PNG", compress_level=1)
            self.files.append(stream.getvalue())
        self.pixels = [np.asarray(Image.open(io.BytesIO(file))) for file in self.files] if decoded else None

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        at = index % len(self.files)
        pixels = self.pixels[at] if self.pixels else np.asarray(Image.open(io.BytesIO(self.files[at])).convert("RGB"))
        if index % 2:
            pixels = pixels[:, ::-1]
        scaled = (pixels.astype(np.float32) / 255.0 - 0.5) / 0.25
        return torch.from_numpy(np.ascontiguousarray(scaled.transpose(2, 0, 1))), index % 10


def net(width: int) -> torch.nn.Module:
    layers: list[torch.nn.Module] = [torch.nn.Conv2d(3, width, 7, 4, 3)]
    for depth in range(3):
        wide = width << depth
        layers += [torch.nn.BatchNorm2d(wide), torch.nn.ReLU(), torch.nn.Conv2d(wide, 2 * wide, 3, 2, 1)]
    return torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8 * width, 10)
    )


def train(run: Run) -> None:
    size, batch, width = run.pick((224, 64, 64), (32, 4, 8))
    pictures = Pictures(run.pick(256, 8), size, run.fix == "decoded")
    workers = run.pick(12 if run.fix == "workers" else 2, 1)
    loader = DataLoader(pictures, batch, num_workers=workers, pin_memory=not run.tiny, shuffle=False)
    model = net(width).to(run.device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = endless(loader)
    for _ in run.steps():
        images, labels = next(batches)
        images, labels = images.to(run.device, non_blocking=True), labels.to(run.device, non_blocking=True)
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
