"""Three small memory snapshots of this version of torch, for tests: LoRA, a full fine-tune, and one out of memory.

    python -m benchmarks.take_snapshots --out DIR

Needs a GPU. Writes DIR/NAME.pickle.gz, and prints for each what the allocator itself says of its peak.
"""

from __future__ import annotations

import argparse
import gzip
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from scenarios.support import data, models
from scenarios.support.loop import trained

STEPS = 3
LIMIT_GIB = 3.0
"""Memory limit of the process that runs out of memory."""


def steps(model: torch.nn.Module, length: int, count: int = STEPS) -> None:
    """Trains a few steps on rows of this many tokens."""
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4)
    batch = data.full(32_000, 2, length, "cuda")
    for _ in range(count):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def lora() -> None:
    steps(models.lora(models.build("tinyllama-1.1b", "cuda", num_hidden_layers=3)), 512)


def full() -> None:
    steps(models.build("tinyllama-1.1b", "cuda", num_hidden_layers=2), 1024)


def out_of_memory() -> None:
    torch.cuda.set_per_process_memory_fraction(LIMIT_GIB * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    try:
        steps(models.build("tinyllama-1.1b", "cuda", num_hidden_layers=2), 4096)
    except torch.OutOfMemoryError as error:
        print(str(error).splitlines()[0])
    torch.cuda.set_per_process_memory_fraction(1.0)


def main() -> int:
    """The command line; 1 where there is no GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    folder = parser.parse_args().out
    if not torch.cuda.is_available():
        print("no GPU: a snapshot is of the GPU's allocator", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    programs: dict[str, Callable[[], None]] = {"lora": lora, "full": full, "out_of_memory": out_of_memory}
    for name, program in programs.items():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.memory._record_memory_history(max_entries=20_000, stacks="python")
        program()
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        path = folder / f"{name}.pickle.gz"
        path.write_bytes(gzip.compress(pickle.dumps(snapshot), 9))
        peak = torch.cuda.max_memory_allocated() / 2**20
        print(
            f"{name}: torch {torch.__version__}, peak {peak:.1f} MiB, {path.stat().st_size / 1024:.0f} KiB", flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
