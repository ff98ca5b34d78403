"""A Llama of 5 layers, width 2048, in float32 with float32 matrix multiplications; 2 × 1024 tokens."""

from __future__ import annotations

import itertools

import torch

from scenarios.support import data, models
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    if run.fix == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
    dtype = torch.bfloat16 if run.fix == "bf16" else torch.float32
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, dtype=dtype, num_hidden_layers=5)
    forward = torch.compile(model) if run.fix == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = itertools.repeat(data.full(model.config.vocab_size, run.pick(2, 1), run.pick(1024, 16), run.device))
    for _ in run.steps():
        with torch.autocast(run.device.split(":")[0], torch.bfloat16, enabled=run.fix == "autocast"):
            loss = forward(**next(batches)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
