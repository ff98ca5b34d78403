"""A Llama of 6 layers that keeps activations in host memory (torch.autograd.graph.save_on_cpu) where they would fit."""

from __future__ import annotations

import contextlib
import itertools

import torch
from torch.autograd.graph import save_on_cpu

from scenarios.support import data, models
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 6, "num_attention_heads": 16}
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, **shape)
    if run.fix == "checkpointing":
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    batches = itertools.repeat(data.full(model.config.vocab_size, run.pick(4, 1), run.pick(512, 16), run.device))
    kept = run.fix in ("on_gpu", "checkpointing")
    for _ in run.steps():
        with contextlib.nullcontext() if kept else save_on_cpu(pin_memory=run.fix == "pinned" and not run.tiny):
            loss = model(**next(batches)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
