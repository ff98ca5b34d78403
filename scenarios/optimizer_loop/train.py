"""Full fine-tune of Qwen2.5-0.5B in bf16, one sequence of 512 tokens, nothing padded."""

from __future__ import annotations

import itertools

import torch

from scenarios.support import data, models
from scenarios.support.loop import finetune
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    model = models.build("qwen2.5-0.5b", run.device, tiny=run.tiny)
    how = {run.fix: True} if run.fix else {"foreach": False}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **how)
    batch = data.full(model.config.vocab_size, 1, run.pick(512, 16), run.device)
    finetune(run, model, itertools.repeat(batch), optimizer)


if __name__ == "__main__":
    main(train)
