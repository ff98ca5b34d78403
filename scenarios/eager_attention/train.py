"""LoRA on six layers of TinyLlama in bf16, 4 sequences of 2048 tokens, none padded."""

from __future__ import annotations

import itertools

import torch

from scenarios.support import data, models
from scenarios.support.loop import finetune, trained
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    attention = "sdpa" if run.fix == "sdpa" else "eager"
    base = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, attention=attention, num_hidden_layers=6)
    model = models.lora(base)
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4)
    batch = data.full(model.config.vocab_size, 4, run.pick(2048, 32), run.device)
    finetune(run, model, itertools.repeat(batch), optimizer)


if __name__ == "__main__":
    main(train)
