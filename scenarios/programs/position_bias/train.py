"""An encoder (12 layers, width 512) with T5's relative positions on 8 × 1,024 tokens, bf16 autocast.

Each layer looks the bias up again, in the table that all layers share.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from scenarios.support.run import Run, main

BUCKETS, FARTHEST = 32, 128


def buckets_of(distance: torch.Tensor) -> torch.Tensor:
    """T5's buckets of signed distances: near ones have one each, those further away share them by their logarithm."""
    half = BUCKETS // 2
    near, length = half // 2, distance.abs()
    far = near + (torch.log(length.float().clamp(min=1) / near) / math.log(FARTHEST / near) * (half - near)).long()
    return (distance > 0).long() * half + torch.where(length < near, length, far.clamp(max=half - 1))


class Bias(nn.Module):
    """The bias of heads × queries × keys for a sequence of that length."""

    def __init__(self, heads: int, how: str) -> None:
        super().__init__()
        self.table, self.how = nn.Embedding(BUCKETS, heads), how
        self.kept: torch.Tensor | None = None

    def buckets(self, length: int) -> torch.Tensor:
        if self.kept is not None:
            return self.kept
        places = torch.arange(length, device=self.table.weight.device)
        found = buckets_of(places[None] - places[:, None])
        if self.how == "buckets_kept":
            self.kept = found
        return found

    def forward(self, length: int) -> torch.Tensor:
        if self.how == "distances":
            # One row for each distance; a query's keys are a window of them.
            distances = torch.arange(1 - length, length, device=self.table.weight.device)
            return self.table(buckets_of(distances)).mT.unfold(1, length, 1).flip(1)
        return self.table(self.buckets(length)).permute(2, 0, 1)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mask = bias[None].to(q.dtype).contiguous().expand(rows, -1, -1, -1)
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    """Tokens → logits of each."""

    def __init__(self, words: int, width: int, layers: int, how: str) -> None:
        super().__init__()
        heads = width // 64 or 2
        self.embed, self.bias, self.once = nn.Embedding(words, width), Bias(heads, how), how == "once"
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        shared = self.bias(tokens.shape[1]) if self.once else None
        for layer in self.layers:
            x = layer(x, self.bias(tokens.shape[1]) if shared is None else shared)
        return self.head(x)


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, width, rows, length, layers = run.pick((4096, 512, 8, 1024, 12), (64, 32, 2, 16, 2))
    model = Encoder(words, width, layers, run.fix).to(run.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    tokens = torch.randint(0, words, (rows, length), device=run.device)
    labels = torch.randint(0, words, (rows * length,), device=run.device)
    for _ in run.steps():
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            logits = model(tokens)
        loss = cross_entropy(logits.flatten(0, 1).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
