"""A forecaster of time series: a transformer (6 layers, width 512, 8 heads) that sees 1024 hours of 16 measurements and
predicts the next 96, 24 series a batch, bf16 autocast. Its layers call torch.nn.MultiheadAttention.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from scenarios.support.data import endless
from scenarios.support.run import Run, main

MEASURED = 16


class Windows(Dataset):
    """Pieces of long series: what came before, and what is to be predicted."""

    def __init__(self, series: int, seen: int, ahead: int) -> None:
        self.values = torch.randn(series, 4 * (seen + ahead), MEASURED).cumsum(1) / 100
        self.seen, self.ahead = seen, ahead

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        values = self.values[index % len(self.values)]
        start = 7 * index % (len(values) - self.seen - self.ahead)
        window = values[start : start + self.seen + self.ahead]
        return window[: self.seen], window[self.seen :]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, returned: bool) -> None:
        super().__init__()
        self.returned = returned
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.before(x)
        if self.returned:
            attended, _ = self.attention(normed, normed, normed)
        else:
            attended, _ = self.attention(normed, normed, normed, need_weights=False)
        x = x + attended
        return x + self.wide(self.after(x))


class Forecaster(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, seen: int, ahead: int, returned: bool) -> None:
        super().__init__()
        self.ahead = ahead
        self.embed, self.place = nn.Linear(MEASURED, width), nn.Parameter(0.02 * torch.randn(seen, width))
        self.blocks = nn.ModuleList(Block(width, heads, returned) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, ahead * MEASURED)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Batch × hours × measurements → batch × hours ahead × measurements."""
        x = self.embed(x) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1)).unflatten(1, (self.ahead, MEASURED))


def train(run: Run) -> None:
    torch.manual_seed(0)
    width, heads, layers, batch, seen, ahead = run.pick((512, 8, 6, 24, 1024, 96), (16, 2, 2, 2, 24, 4))
    with torch.device(run.device):
        model = Forecaster(width, heads, layers, seen, ahead, run.fix != "no_weights").train()
    if run.fix == "compile":
        for block in model.blocks:
            block.compile(backend=run.pick("inductor", "eager"))
    loader = DataLoader(Windows(64, seen, ahead), batch, num_workers=run.pick(4, 0), pin_memory=not run.tiny)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    batches = endless(loader)
    for _ in run.steps():
        before, wanted = (values.to(run.device, non_blocking=True) for values in next(batches))
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            predicted = model(before)
        functional.huber_loss(predicted.float(), wanted).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
