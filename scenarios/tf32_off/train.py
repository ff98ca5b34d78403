"""Full fine-tune of Qwen2.5-0.5B in float32, 4 sequences of 512 tokens, none padded."""

from __future__ import annotations

import itertools

import torch

from scenarios.support import data, models
from scenarios.support.loop import finetune
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    if run.fix == "tf32":
        torch.set_float32_matmul_precision("high")
    model = models.build("qwen2.5-0.5b", run.device, tiny=run.tiny, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    batch = data.full(model.config.vocab_size, 4, run.pick(512, 16), run.device)
    finetune(run, model, itertools.repeat(batch), optimizer)


if __name__ == "__main__":
    main(train)
