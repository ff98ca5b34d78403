"""DDP on two GPUs, LoRA on TinyLlama, 8 x 512 tokens a rank; rank 0 follows the accuracy in Python."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from scenarios.support import data, models
from scenarios.support.loop import trained
from scenarios.support.ranks import ranks
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    every = 50 if run.fix == "rarely" else 1
    with ranks(run) as (rank, _):
        model = models.lora(models.build("tinyllama-1.1b", run.device, tiny=run.tiny))
        model = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(trained(model), lr=1e-4)
        batch = data.full(model.module.config.vocab_size, run.pick(8, 2), run.pick(512, 16), run.device)
        for step in run.steps():
            output = model(**batch)
            output.loss.backward()
            if rank == 0 and (step + 1) % every == 0:
                accuracy(output.logits, batch["labels"])
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def accuracy(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of tokens that were among the ten most likely, sequence by sequence."""
    likely = logits[:, :-1].topk(10).indices.tolist()
    right = total = 0
    for guesses, tokens in zip(likely, labels[:, 1:].tolist(), strict=True):
        for guess, token in zip(guesses, tokens, strict=True):
            words = " ".join(f"{each:06d}" for each in guess).split()
            right += f"{token:06d}" in words
            total += 1
    return right / total


if __name__ == "__main__":
    main(train)
