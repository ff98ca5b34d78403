"""A compiled model with something in each block that breaks the graph, and the same model without it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from scenarios.support.run import Run

Planted = Callable[[torch.Tensor, int], torch.Tensor]
"""Is called with the hidden states between the two halves of a block, and with the block's number."""
SMALL = (512, 4, 256)
"""Width, rows and length of a model whose step takes a few milliseconds on a GPU."""


class Block(torch.nn.Module):
    """Attention and an MLP, with the planted function in between in every `every`-th block."""

    def __init__(self, width: int, number: int, planted: Planted | None) -> None:
        super().__init__()
        self.number, self.planted = number, planted
        self.norm, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(rows, length, 3, width // 64 or 1, -1).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        if self.planted is not None:
            x = self.planted(x, self.number)
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(torch.nn.Module):
    def __init__(self, width: int, blocks: int, planted: Planted | None, every: int = 1) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(8192, width)
        self.blocks = torch.nn.ModuleList(Block(width, i, planted if i % every == 0 else None) for i in range(blocks))
        self.head = torch.nn.Linear(width, 8192)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, 0.0, 0.5 / math.sqrt(width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train_compiled(
    run: Run,
    planted: Planted | None,
    after: Planted | None = None,
    blocks: int = 8,
    every: int = 1,
    size: tuple[int, int, int] = SMALL,
    prepare: Callable[[Model], None] | None = None,
) -> None:
    """Trains the compiled model with the planted function, or with `after` instead where the fix is `removed` or
    `removed_graphs` (with CUDA graphs); `eager`: not compiled at all. `prepare`: called with the model before it is
    compiled."""
    torch.manual_seed(0)
    width, rows, length = run.pick(size, (64, 2, 8))
    chosen = after if run.fix.startswith("removed") else planted
    model = Model(width, run.pick(blocks, 2), chosen, every).to(run.device, torch.bfloat16)
    if prepare is not None:
        prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    tokens = torch.randint(0, 8192, (rows, length), device=run.device)
    mode = "reduce-overhead" if run.fix == "removed_graphs" else None
    forward = model if run.fix == "eager" else torch.compile(model, mode=mode)
    for _ in run.steps():
        logits = forward(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
