"""LoRA on six layers of Llama 3.1 8B, 4 sequences of 1024 tokens a step, none packed or padded, with checkpointing.

A recipe for small GPUs on a large one: what is computed again would have fitted into memory.
"""

from __future__ import annotations

import itertools

import torch

from scenarios.support import data, models
from scenarios.support.loop import finetune, trained
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    model = models.build("llama-3.1-8b", run.device, tiny=run.tiny, num_hidden_layers=6)
    if run.fix != "off":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model = models.lora(model, rank=16, casts=False)
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4)
    batch = data.full(model.config.vocab_size, run.pick(4, 2), run.pick(1024, 16), run.device)
    finetune(run, model, itertools.repeat(batch), optimizer)


if __name__ == "__main__":
    main(train)
