"""A training of many small kernels that prints how long each of its steps took, for benchmarks/stall.py.

    python benchmarks/launch_heavy.py --kernels 5000 --steps 60

It is run as a file, so that nothing but torch is imported.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import pairwise

import torch

WIDTH, ROWS = 64, 32
KERNELS_A_LAYER = 15
"""Kernels of a layer, forward and backward, as recorded on an H100 with torch 2.11; `stall.py` counts the real ones."""


class Layer(torch.nn.Module):
    """A linear layer and elementwise ops: some kernels of a few microseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x) * 0.5).sigmoid() * x


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernels", type=int, default=5000, help="approximate number per step")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    layers = max(1, options.kernels // KERNELS_A_LAYER)
    model = torch.nn.Sequential(*(Layer() for _ in range(layers))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(ROWS, WIDTH, device=device)
    marks = [time.perf_counter()]
    try:
        for _ in range(options.steps):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            marks.append(time.perf_counter())
    finally:
        each = [round(1e3 * (b - a), 3) for a, b in pairwise(marks)]
        print("\nsteps", json.dumps(each), flush=True)


if __name__ == "__main__":
    main()
