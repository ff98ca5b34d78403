"""FSDP2 in two copies (HSDP): 7 Llama-like layers of 4096, 8 x 2048 tokens a rank, bf16."""

from __future__ import annotations

from scenarios.support import parallel
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    parallel.train(run, "hsdp")


if __name__ == "__main__":
    main(train)
