"""DDP on two GPUs: full fine-tune of TinyLlama in bf16, 4 micro-steps of 1 x 512 tokens a rank."""

from __future__ import annotations

import contextlib

import torch
from torch.nn.parallel import DistributedDataParallel

from scenarios.support import data, models
from scenarios.support.ranks import ranks
from scenarios.support.run import Run, main

MICRO_STEPS = 4


def train(run: Run) -> None:
    with ranks(run):
        model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny)
        vocabulary = model.config.vocab_size
        model = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=not run.tiny)
        batch = data.full(vocabulary, 1, run.pick(512, 16), run.device)
        for _ in run.steps():
            for micro in range(MICRO_STEPS):
                quiet = run.fix == "no_sync" and micro < MICRO_STEPS - 1
                with model.no_sync() if quiet else contextlib.nullcontext():
                    (model(**batch).loss / MICRO_STEPS).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
