"""An encoder (12 layers, width 768) that is trained on packed blocks of 8 × 2048 tokens; bf16 weights.

The collator fills every block, and gives lengths as for any other data set.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.data import DataLoader, TensorDataset

from scenarios.support.data import endless
from scenarios.support.run import Run, main

HEAD = 64


class Layer(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(rows, length, 3, -1, HEAD).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(gelu(self.up(self.norm2(x))))


class Encoder(torch.nn.Module):
    """Tokens, and which of them are real, → logits. `kind`: what attention is given."""

    def __init__(self, vocabulary: int, width: int, length: int, layers: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embed, self.places = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(length, width)
        self.layers = torch.nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, vocabulary)

    def attention_mask(self, real: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Of 1 for real tokens, rows × length: what is added to the scores, rows × 1 × length × length."""
        if self.kind == "keys_only":
            return ((1.0 - real.to(dtype)) * torch.finfo(dtype).min)[:, None, None].expand(-1, 1, real.shape[1], -1)
        pairs = real[:, None, :, None] * real[:, None, None, :]
        if self.kind == "bool_mask":
            return pairs.bool()
        return (1.0 - pairs.to(dtype)) * torch.finfo(dtype).min

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        at = torch.arange(length, device=tokens.device)
        x = self.embed(tokens) + self.places(at)
        if self.kind == "no_mask" and bool((lengths == length).all()):
            mask = None
        else:
            real = (at < lengths.to(tokens.device, non_blocking=True)[:, None]).long()
            mask = self.attention_mask(real, x.dtype)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def train(run: Run) -> None:
    torch.manual_seed(0)
    vocabulary, width, rows, length, layers = run.pick((8192, 768, 8, 2048, 12), (256, 64, 2, 16, 2))
    model = Encoder(vocabulary, width, length, layers, run.fix).to(run.device, torch.bfloat16).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    blocks = TensorDataset(torch.randint(0, vocabulary, (256, length)), torch.full((256,), length))
    batches = endless(DataLoader(blocks, rows, drop_last=True, pin_memory=not run.tiny))
    for _ in run.steps():
        tokens, lengths = next(batches)
        tokens = tokens.to(run.device, non_blocking=True)
        logits = model(tokens, lengths)
        loss = cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
