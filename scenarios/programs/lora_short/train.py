"""LoRA on 12 layers of Qwen2.5-0.5B, one sequence of 256 tokens a step, gradients clipped."""

from __future__ import annotations

import itertools

import torch

from scenarios.support import data, models
from scenarios.support.loop import trained
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    model = models.lora(
        models.build("qwen2.5-0.5b", run.device, tiny=run.tiny, num_hidden_layers=12, vocab_size=32_000)
    )
    weights = trained(model)
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True if run.fix == "fused" and not run.tiny else None)
    batch = data.full(model.config.vocab_size, 4 if run.fix == "batch_4" else 1, run.pick(256, 16), run.device)
    if run.fix in ("compile", "cuda_graphs"):
        model = torch.compile(model, mode="reduce-overhead" if run.fix == "cuda_graphs" else None)
    batches = itertools.repeat(batch)
    for _ in run.steps():
        loss = model(**next(batches)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
