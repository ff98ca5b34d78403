"""DDP on two GPUs: full fine-tune of TinyLlama in bf16, 4 x 1024 tokens a rank."""

from __future__ import annotations

import itertools

import torch
from torch.nn.parallel import DistributedDataParallel

from scenarios.support import data, models
from scenarios.support.loop import finetune
from scenarios.support.ranks import ranks
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    with ranks(run):
        model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny)
        batch = data.full(model.config.vocab_size, run.pick(4, 1), run.pick(1024, 16), run.device)
        if run.fix != "alone":
            model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=not run.tiny)
        finetune(run, model, itertools.repeat(batch), optimizer)


if __name__ == "__main__":
    main(train)
