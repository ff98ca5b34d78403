"""ViT-Base in bf16, batches of 64 pictures that four worker processes unpack, crop and normalise.

The pictures are made up, compressed with zlib, and larger than what the model sees, as photographs are.
"""

from __future__ import annotations

import random
import zlib

import torch
from torch.utils.data import DataLoader, Dataset

from scenarios.support.run import Run, main

PICTURES, CLASSES = 256, 100


class Pictures(Dataset):
    """Compressed pictures of `size` × `size`, of which a sample is a random part of half the size."""

    def __init__(self, size: int, count: int) -> None:
        self.size, self.count = size, count
        rng = torch.Generator().manual_seed(0)
        # Smooth, so that they compress; a few different ones are enough to be unpacked again and again.
        coarse = torch.rand((16, 3, 16, 16), generator=rng)
        smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bicubic").clamp(0, 1)
        noisy = (smooth * 255 + torch.randint(0, 4, smooth.shape, generator=rng)).clamp(0, 255).to(torch.uint8)
        self.packed = [zlib.compress(picture.numpy().tobytes(), 1) for picture in noisy]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        raw = bytearray(zlib.decompress(self.packed[index % len(self.packed)]))
        picture = torch.frombuffer(raw, dtype=torch.uint8).view(3, self.size, self.size)
        half = self.size // 2
        top, left = random.randrange(half), random.randrange(half)
        part = picture[:, top : top + half, left : left + half].float().div(255)
        if random.random() < 0.5:
            part = part.flip(-1)
        return (part - 0.5) / 0.25, index % CLASSES


def train(run: Run) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    size = run.pick(448, 32)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = ViTConfig(image_size=size // 2, patch_size=run.pick(16, 8), num_labels=CLASSES, **run.pick({}, shape))
    torch.manual_seed(0)
    model = ViTForImageClassification(config).to(run.device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    pinned = run.fix in ("pinned", "both")
    loader = DataLoader(
        Pictures(size, run.pick(64 * 1000, 256)),
        batch_size=run.pick(64, 4),
        num_workers=run.pick(16 if run.fix in ("workers", "both") else 4, 2),
        pin_memory=pinned and not run.tiny,
        drop_last=True,
    )
    batches = iter(loader)
    for _ in run.steps():
        pictures, labels = next(batches)
        pictures = pictures.to(run.device, torch.bfloat16, non_blocking=pinned)
        labels = labels.to(run.device, non_blocking=pinned)
        loss = model(pixel_values=pictures, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
