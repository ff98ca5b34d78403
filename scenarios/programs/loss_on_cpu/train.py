"""A ViT that segments (12 layers, width 512, 8 images of 256 × 256, 150 classes) and computes its loss on the CPU.

The labels come from the loader and stay where they are; the logits are brought to them, and their gradient back.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from scenarios.support.run import Run, main


class Segmenter(torch.nn.Module):
    """Images → logits of each class at half their size."""

    def __init__(self, size: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, width, 8, 8)
        self.places = torch.nn.Parameter(torch.randn(1, (size // 8) ** 2, width) * 0.02)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.up = torch.nn.ConvTranspose2d(width, width // 2, 4, 4)
        self.head = torch.nn.Conv2d(width // 2, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        grid = self.patches(images)
        states = grid.flatten(2).mT + self.places
        for layer in self.layers:
            states = layer(states)
        return self.head(functional.gelu(self.up(states.mT.reshape(grid.shape))))


def train(run: Run) -> None:
    torch.manual_seed(0)
    size, width, layers, images = run.pick((256, 512, 12, 8), (32, 32, 2, 2))
    classes = 150
    model = Segmenter(size, width, layers, classes).to(run.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    pictures = torch.randn(images, 3, size, size)
    labels = torch.randint(0, classes, (images, size // 2, size // 2))
    for _ in run.steps():
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            logits = model(pictures.to(run.device))
        if run.fix == "on_gpu":
            loss = functional.cross_entropy(logits.float(), labels.to(run.device))
        elif run.fix == "moved_bf16":
            loss = functional.cross_entropy(logits.cpu().float(), labels)
        else:
            loss = functional.cross_entropy(logits.float().cpu(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
