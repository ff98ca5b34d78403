"""DeepFM on 26 features of 10 million rows in total, width 64, 4,096 samples, float32 with TF32.

As in pytorch-fm, one table holds the rows of all features, with an offset for each.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from scenarios.support.run import Run, main


class DeepFM(nn.Module):
    """Rows of samples × features → a logit for each sample. The tables can have sparse gradients."""

    def __init__(self, sizes: list[int], width: int, hidden: int, sparse: bool) -> None:
        super().__init__()
        starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.register_buffer("offsets", starts)
        self.linear = nn.Embedding(sum(sizes), 1, sparse=sparse)
        self.embedding = nn.Embedding(sum(sizes), width, sparse=sparse)
        self.bias = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(
            nn.Linear(len(sizes) * width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def tables(self) -> list[nn.Parameter]:
        return [self.linear.weight, self.embedding.weight]

    def others(self) -> list[nn.Parameter]:
        return [self.bias, *self.mlp.parameters()]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        rows = features + self.offsets
        vectors = self.embedding(rows)
        crossed = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        return self.bias + self.linear(rows).sum((1, 2)) + crossed + self.mlp(vectors.flatten(1)).squeeze(1)


def optimizers_of(model: DeepFM, fix: str) -> list[torch.optim.Optimizer]:
    if fix == "sparse":
        return [torch.optim.SparseAdam(model.tables(), lr=1e-3), torch.optim.Adam(model.others(), lr=1e-3)]
    return [torch.optim.Adam(model.parameters(), lr=1e-3, fused=True if fix == "fused" else None)]


def train(run: Run) -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    large, middle, width, hidden, batch = run.pick((1_600_000, 40_000, 64, 1024, 4096), (50, 20, 8, 16, 4))
    sizes = [large] * 6 + [middle] * 10 + [run.pick(200, 5)] * 10
    with torch.device(run.device):
        model = DeepFM(sizes, width, hidden, run.fix == "sparse").train()
    for table in model.tables():
        nn.init.normal_(table, std=0.01)
    optimizers = optimizers_of(model, run.fix)
    # Few rows are frequent: the most frequent of a feature come first.
    shares = torch.rand(64, batch, len(sizes)) ** 4
    samples = (shares * torch.tensor(sizes)).long().pin_memory() if not run.tiny else (shares * 5).long()
    clicks = torch.randint(0, 2, (64, batch), device=run.device).float()
    for step in run.steps():
        features = samples[step % len(samples)].to(run.device, non_blocking=True)
        with torch.autocast(run.device.split(":")[0], torch.bfloat16, enabled=run.fix == "autocast"):
            logits = model(features)
        loss = binary_cross_entropy_with_logits(logits.float(), clicks[step % len(samples)])
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
