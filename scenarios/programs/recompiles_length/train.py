"""Compiled blocks with dynamic=False and batches of eight lengths, more than the limit of recompilations allows"""

from __future__ import annotations

import itertools

import torch

from scenarios.support.planted import Model
from scenarios.support.run import Run, main

LENGTHS = (160, 224, 128, 288, 192, 256, 320, 352)
"""Tokens per sample, step by step; dynamo compiles for the first three."""


def train(run: Run) -> None:
    torch.manual_seed(0)
    width, rows = run.pick((768, 8), (64, 2))
    torch._dynamo.config.recompile_limit = 3
    model = Model(width, run.pick(6, 2), None).to(run.device, torch.bfloat16)
    for block in model.blocks:
        block.compile(dynamic=run.fix == "dynamic")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    lengths = itertools.cycle(length // run.pick(1, 32) for length in LENGTHS)
    for _ in run.steps():
        tokens = torch.randint(0, 8192, (rows, next(lengths)), device=run.device)
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
