"""Small trainings that run out of the GPU's memory, each for one reason, and the same ones with that reason removed.

    gpuprof trace --memory --out run -m benchmarks.out_of_memory KIND
    gpuprof memory run
    python -m benchmarks.out_of_memory KIND --fixed

KIND: activations (a batch too large), logits (a vocabulary too large for the batch), optimizer (state of two numbers a
parameter), leak (every step keeps a tensor). A process may take 6 % of the GPU's memory, 8.4 GiB of an H200's. The
snapshots in tests/data/snapshots are of a run of this; with --fixed the program ends and prints its peak.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

SHARE = 0.06
"""Share of the GPU's memory that the process may take."""
STEPS = 60


class Block(nn.Module):
    """A block of a transformer without its attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Tokens of shape (batch, length) in, logits of shape (batch, length, vocabulary) out."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


# vocabulary, width, layers, batch, length; the batch with --fixed
KINDS = {
    "activations": (1000, 512, 24, 96, 512, 8),
    "logits": (120_000, 256, 4, 24, 512, 4),
    "optimizer": (8000, 2048, 14, 1, 64, 1),
    "leak": (8000, 512, 12, 16, 512, 16),
}


def train(kind: str, fixed: bool) -> None:
    """Trains; raises torch.OutOfMemoryError unless fixed."""
    vocabulary, width, layers, batch, length, smaller = KINDS[kind]
    model = Model(vocabulary, width, layers).cuda()
    make = torch.optim.SGD if kind == "optimizer" and fixed else torch.optim.AdamW
    optimizer = make(model.parameters(), lr=1e-4)
    kept: list[Tensor | float] = []
    for _ in range(STEPS):
        tokens = torch.randint(0, vocabulary, (smaller if fixed else batch, length), device="cuda")
        logits = model(tokens)
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if kind == "leak":
            kept.append(loss.item() if fixed else logits.detach())
    torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--fixed", action="store_true", help="without the reason for which memory runs out")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.cuda.set_per_process_memory_fraction(SHARE)
    train(args.kind, args.fixed)
    print(f"{args.kind}: at most {torch.cuda.max_memory_allocated() / 2**20:,.0f} MiB")


if __name__ == "__main__":
    main()
