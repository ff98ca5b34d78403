"""A training that times its own steps, and runs as many of them as it is asked for.

    python benchmarks/timed_loop.py lora [--layers 20]

For every number that it reads from stdin it runs this many steps and answers with their durations in nanoseconds,
a JSON list on a line; it ends with its stdin. Its first line says who it is: {"pid": …, "torch": …, "device": …}.
It is run as a file, so that nothing but torch is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

WIDTH, LAYERS, RANK, VOCABULARY = 256, 8, 8, 1000
SHAPES = {"lora": (2, 64), "tiny": (1, 4)}
"""Samples and tokens of a batch. lora: small ops, which a GPU does faster than they are launched. tiny: no work at
all, so that everything around the step shows."""


class Adapted(torch.nn.Module):
    """A frozen linear layer with a LoRA adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(WIDTH, WIDTH)
        self.base.requires_grad_(False)
        self.down = torch.nn.Linear(WIDTH, RANK, bias=False)
        self.up = torch.nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x + self.base(x) + self.up(self.down(x)))


class Lora(torch.nn.Module):
    """A stack of them between an embedding and a head."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH).requires_grad_(False)
        self.layers = torch.nn.ModuleList([Adapted() for _ in range(layers)])
        self.head = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x)
        return (self.head(x) * attention_mask.unsqueeze(-1)).square().mean()


class Tiny(torch.nn.Module):
    """One number, multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.weight * 2


class Batches(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The same sample over and over."""

    def __init__(self, tokens: int) -> None:
        self._sample = {"input_ids": torch.arange(tokens), "attention_mask": torch.ones(tokens, dtype=torch.long)}

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self._sample


def steps(name: str, device: torch.device, layers: int = LAYERS) -> Iterator[int]:
    """Trains for as long as it is asked to; yields how many nanoseconds each step took. layers: of `lora`.

    A step of `lora` reads its loss, as many loops do, and so waits for the GPU. One of `tiny` does not: it is timed
    on the host, with nothing left to do on the GPU when it begins.
    """
    samples, tokens = SHAPES[name]
    model = (Lora(layers) if name == "lora" else Tiny()).to(device)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-6, foreach=False)
    batches = iter(DataLoader(Batches(tokens), batch_size=samples, sampler=range(1 << 40)))
    wait: Callable[[], Any] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    while True:
        if name == "tiny":
            wait()
        begin = time.perf_counter_ns()
        loss = model(**{key: value.to(device) for key, value in next(batches).items()})
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if name == "lora":
            loss.item()
        yield time.perf_counter_ns() - begin


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=sorted(SHAPES))
    parser.add_argument("--layers", type=int, default=LAYERS)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    durations = steps(options.name, device, options.layers)
    print(json.dumps({"pid": os.getpid(), "torch": torch.__version__, "device": name}), flush=True)
    for line in sys.stdin:
        print(json.dumps([next(durations) for _ in range(int(line))]), flush=True)


if __name__ == "__main__":
    main()
