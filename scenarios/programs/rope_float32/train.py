"""A language model of 12 layers and width 1024 with weights in bf16, 8 × 2048 tokens. Angles of rotary embeddings need
float32, so they are computed in it.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from scenarios.support.run import Run, main


def angles(length: int, head: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, (length, head) each, in float32."""
    frequencies = 1.0 / 10_000 ** (torch.arange(0, head, 2, device=device).float() / head)
    turns = torch.outer(torch.arange(length, device=device).float(), frequencies).repeat(1, 2)
    return turns.cos(), turns.sin()


def rotated(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Queries or keys, (batch, heads, length, head), with their places."""
    first, second = x.float().chunk(2, dim=-1)
    return x.float() * cosines + torch.cat((-second, first), dim=-1) * sines


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, cast_back: bool) -> None:
        super().__init__()
        self.heads, self.cast_back = heads, cast_back
        self.inward, self.outward = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.inward(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotated(q, cosines, sines), rotated(k, cosines, sines)
        if self.cast_back:
            q, k = q.to(v.dtype), k.to(v.dtype)
        else:
            v = v.to(q.dtype)  # "Expected query, key, and value to have the same dtype"
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outward(attended.transpose(1, 2).reshape(batch, length, width).to(x.dtype))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, cast_back: bool) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, cast_back)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x), cosines, sines)
        return x + self.wide(self.between(x))


class Model(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int, cast_back: bool) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(words, width), nn.RMSNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads, cast_back) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, cosines, sines)
        return self.head(self.norm(x))


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, width, heads, layers = run.pick((32_000, 1024, 16, 12), (200, 32, 2, 2))
    batch, length = run.pick((8, 2048), (2, 16))
    with torch.device(run.device):
        model = Model(words, width, heads, layers, run.fix == "cast_back").to(torch.bfloat16).train()
    cosines, sines = angles(length, width // heads, run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    tokens = torch.randint(0, words, (batch, length + 1), device=run.device)
    for _ in run.steps():
        logits = model(tokens[:, :-1], cosines, sines)
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
