"""Four tasks over one encoder (8 layers, width 768), 32 × 256 tokens, bf16 autocast.

Each task's loss has a backward pass of its own, as loops over tasks are often written.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from scenarios.support.run import Run, main

CLASSES = (4, 20, 2, 100)


class Tasks(nn.Module):
    """Tokens → features, and logits of each task."""

    def __init__(self, words: int, width: int, length: int, layers: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64 or 1, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, classes)) for classes in CLASSES
        )

    def features(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.norm(x).mean(1)

    def losses(self, features: torch.Tensor, labels: list[torch.Tensor]) -> list[torch.Tensor]:
        return [cross_entropy(head(features), of_task) for head, of_task in zip(self.heads, labels, strict=True)]


def backward(losses: list[torch.Tensor], at_once: bool) -> None:
    if at_once:
        torch.stack(losses).sum().backward()
        return
    for loss in losses:
        loss.backward(retain_graph=True)


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, width, batch, length, layers = run.pick((30_000, 768, 32, 256, 8), (100, 32, 2, 8, 2))
    model = Tasks(words, width, length, layers).to(run.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    tokens = torch.randint(0, words, (batch, length), device=run.device)
    labels = [torch.randint(0, classes, (batch,), device=run.device) for classes in CLASSES]
    sums = [0.0] * len(CLASSES)
    for _ in run.steps():
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            features = model.features(tokens)
            # Without its history, a task's backward pass ends at the features.
            used = features.detach().requires_grad_() if run.fix == "at_features" else features
            losses = model.losses(used, labels)
        backward(losses, run.fix == "summed")
        if used is not features:
            features.backward(used.grad)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if run.fix != "no_reads":
            sums = [total + loss.item() for total, loss in zip(sums, losses, strict=True)]


if __name__ == "__main__":
    main(train)
