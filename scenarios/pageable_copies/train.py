"""Distillation into a student of TinyLlama's width with eight layers, all of it trained in bf16.

8 sequences of 512 tokens, none padded. The teacher's logits were computed once and lie in the host's memory, float32,
for each token one of every word in the vocabulary: 524 MB a batch. Four batches, again and again.
"""

from __future__ import annotations

import itertools

import torch
from torch.nn import functional

from scenarios.support import data, models
from scenarios.support.run import Run, main


def cached(run: Run, vocabulary: int, seed: int) -> data.Batch:
    """Tokens and what a teacher said to them, in the host's memory."""
    rng = torch.Generator(run.device).manual_seed(seed)
    shape = (8, run.pick(512, 16))
    return {
        "tokens": torch.randint(1, vocabulary, shape, generator=rng, device=run.device).cpu(),
        "teacher": torch.randn(*shape, vocabulary, generator=rng, device=run.device).cpu(),
    }


def train(run: Run) -> None:
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, num_hidden_layers=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    batches = [cached(run, model.config.vocab_size, seed) for seed in range(4)]
    pinned = run.fix == "pinned"
    if pinned and not run.tiny:
        batches = [{name: tensor.pin_memory() for name, tensor in batch.items()} for batch in batches]
    stream = itertools.cycle(batches)
    for _ in run.steps():
        batch = next(stream)
        tokens = batch["tokens"].to(run.device, non_blocking=pinned)
        teacher = batch["teacher"].to(run.device, non_blocking=pinned)
        student = model(input_ids=tokens).logits
        loss = functional.kl_div(
            functional.log_softmax(student.float(), -1).flatten(0, 1),
            functional.log_softmax(teacher, -1).flatten(0, 1),
            reduction="batchmean",
            log_target=True,
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
