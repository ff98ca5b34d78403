"""LoRA on TinyLlama-1.1B, 8 sequences of 1024 tokens a step, none packed or padded, with gradient checkpointing.

A recipe for small GPUs on a large one: what is computed again would have fitted into memory.
"""

from __future__ import annotations

import itertools

import torch

from scenarios.support import data, models
from scenarios.support.loop import finetune, trained
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny)
    if run.fix != "off":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model = models.lora(model, rank=16, casts=False)
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4)
    batch = data.full(model.config.vocab_size, run.pick(8, 2), run.pick(1024, 16), run.device)
    finetune(run, model, itertools.repeat(batch), optimizer)


if __name__ == "__main__":
    main(train)
