"""Runs a program that may take a share of the GPU's memory, so that several can be measured on one GPU.

    python benchmarks/memory_share.py 0.3 train.py --lr 1e-4       # or: 0.3 -m package.module …

It is run as a file; more than that share of the memory is an out-of-memory error of torch, as on a smaller GPU.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    share, *words = sys.argv[1:]
    is_module = words[0] == "-m"
    sys.path[0] = str(Path.cwd() if is_module else Path(words[0]).resolve().parent)
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(float(share))
    sys.argv = words[1:] if is_module else words
    if is_module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
