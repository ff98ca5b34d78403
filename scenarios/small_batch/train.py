"""LoRA on TinyLlama with one sequence of 128 tokens a step."""

from __future__ import annotations

import itertools

import torch

from scenarios.support import data, models
from scenarios.support.loop import finetune, trained
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    model = models.lora(models.build("tinyllama-1.1b", run.device, tiny=run.tiny))
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4)
    batch = data.full(model.config.vocab_size, 8 if run.fix == "batch_8" else 1, run.pick(128, 16), run.device)
    if run.fix == "compile":
        model = torch.compile(model)
    if run.fix == "cuda_graphs":
        model = torch.compile(model, mode="reduce-overhead")
    finetune(run, model, itertools.repeat(batch), optimizer)


if __name__ == "__main__":
    main(train)
