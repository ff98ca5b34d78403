"""Training on few pictures, one a step: each is decoded from PNG, converted to float32 and copied again every time it
is seen; two values are read for the progress line.
"""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from scenarios.support.data import endless
from scenarios.support.run import Run, main

HIDDEN, WORKERS = 7, 3
"""Layers of the net, and processes that decode. Measured with four: 41.5 ms of a core a picture, 10 ms of the GPU a
step, so that the decoding hardly cost anything; three make the 14 to 10 ms that were published."""


class Views(Dataset):
    """Pictures of a scene. `cached`: decoded once, kept as bytes; else decoded on every access, as floats."""

    def __init__(self, count: int, height: int, width: int, cached: bool) -> None:
        rng = np.random.default_rng(0)
        self.files = []
        for _ in range(count):
            coarse = rng.integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
            pixels = np.kron(coarse, np.ones((8, 8, 1), np.uint8)) ^ rng.integers(
                0, 4, (height, width, 3), dtype=np.uint8
            )
            stream = io.BytesIO()
            Image.fromarray(pixels).save(stream, "PNG", compress_level=1)
            self.files.append(stream.getvalue())
        self.kept = [self.decode(i) for i in range(count)] if cached else None

    def decode(self, index: int) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(self.files[index])).convert("RGB"))

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        at = index % len(self.files)
        if self.kept is not None:
            return torch.from_numpy(self.kept[at])
        return torch.from_numpy(self.decode(at).astype(np.float32) / 255.0)


class Field(torch.nn.Module):
    """A small net from places to colours, in place of a renderer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [34, *[width] * HIDDEN, 3]
        self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in pairwise(sizes))
        self.register_buffer("bands", torch.randn(2, 16) * 8)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        waves = places @ self.bands
        x = torch.cat((waves.sin(), waves.cos(), places), -1)
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x).sigmoid()


def train(run: Run) -> None:
    height, width, inner = run.pick((840, 1296, 64), (16, 24, 16))
    cached = run.fix == "after"
    views = Views(run.pick(24, 3), height, width, cached)
    loader = DataLoader(views, None, num_workers=run.pick(WORKERS, 0), pin_memory=not run.tiny, shuffle=False)
    field = Field(inner).to(run.device)
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-3)
    rows, columns = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    places = torch.stack((rows, columns), -1).to(run.device)
    largest = torch.zeros((), device=run.device)
    pictures = endless(loader)
    for step in run.steps():
        picture = next(pictures).to(run.device, non_blocking=run.fix in ("after", "non_blocking"))
        if cached:
            picture = picture.float() / 255.0
        loss = (field(places) - picture).abs().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        largest = torch.maximum(largest, loss.detach())
        if run.fix not in ("after", "no_reads") or step % 100 == 0:
            text = f"loss {loss.item():.3f} largest {largest.item():.3f}"
            assert text


if __name__ == "__main__":
    main(train)
