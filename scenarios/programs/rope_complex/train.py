"""Six layers of attention whose rotary embedding is written with complex numbers in fp32, as in Llama's first code"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from scenarios.support.run import Run, main

HEAD = 64


def turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of rows × length × heads × HEAD by complex numbers of length × HEAD / 2."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(x)


class Layer(torch.nn.Module):
    def __init__(self, width: int, length: int, how: str) -> None:
        super().__init__()
        self.how = how
        self.norm = torch.nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (torch.nn.Linear(width, width, bias=False) for _ in range(4))
        angles = torch.outer(torch.arange(length).float(), 1e4 ** (-torch.arange(0, HEAD, 2).float() / HEAD))
        self.turns = torch.polar(torch.ones_like(angles), angles)
        self.angles = torch.cat((angles, angles), -1)[None]

    def to_device(self, device: str) -> None:
        self.turns = self.turns.to(device)
        self.cos, self.sin = self.angles.cos().to(device, torch.bfloat16), self.angles.sin().to(device, torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        wide = self.norm(x)
        q, k, v = (part(wide).view(rows, length, -1, HEAD) for part in (self.q, self.k, self.v))
        if self.how == "liger":
            from liger_kernel.transformers.rope import liger_rotary_pos_emb

            q, k = liger_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), self.cos, self.sin)[:2]
        else:
            q, k = turned(q, self.turns).transpose(1, 2), turned(k, self.turns).transpose(1, 2)
        mixed = scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))


def train(run: Run) -> None:
    torch.manual_seed(0)
    width, rows, length, layers = run.pick((2048, 2, 2048, 6), (128, 2, 8, 2))
    blocks = [Layer(width, length, run.fix) for _ in range(layers)]
    model = torch.nn.Sequential(torch.nn.Embedding(8192, width), *blocks, torch.nn.Linear(width, 8192, bias=False))
    model.to(run.device, torch.bfloat16)
    for block in blocks:
        block.to_device(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=not run.tiny)
    tokens = torch.randint(0, 8192, (rows, length), device=run.device)
    for _ in run.steps():
        loss = cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
