"""Two stages (1F1B, 4 micro-batches) of tensor parallel ranks: 14 Llama-like layers of 4096, 16 x 2048 tokens."""

from __future__ import annotations

from scenarios.support import parallel
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    parallel.train(run, "tensor_pipeline")


if __name__ == "__main__":
    main(train)
