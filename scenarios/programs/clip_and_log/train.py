"""Full fine-tune of a small GPT (12 layers, width 512) whose loop reads much: a norm of each gradient, and five
metrics.
"""

from __future__ import annotations

import itertools
import math

import torch

from scenarios.support import data, models
from scenarios.support.run import Run, main


def clip(weights: list[torch.nn.Parameter], most: float) -> float:
    """Scales the gradients so that their norm is at most that. Reads a norm of each from the GPU."""
    total = math.sqrt(sum(float(weight.grad.norm()) ** 2 for weight in weights if weight.grad is not None))
    if total > most:
        for weight in weights:
            if weight.grad is not None:
                weight.grad.mul_(most / total)
    return total


def train(run: Run) -> None:
    shape = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 8}
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, **shape)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=1e-4)
    batches = itertools.repeat(data.full(model.config.vocab_size, run.pick(8, 1), run.pick(512, 16), run.device))
    seldom, foreach = run.fix in ("log_seldom", "both"), run.fix in ("foreach", "both")
    log: list[dict[str, float]] = []
    for step in run.steps():
        out = model(**next(batches))
        out.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights, 1.0) if foreach else clip(weights, 1.0)
        optimizer.step()
        if not seldom or step % 50 == 0:
            accuracy = (out.logits[:, :-1].argmax(-1) == next(batches)["labels"][:, 1:]).float().mean()
            log.append({
                "loss": out.loss.item(), "perplexity": out.loss.exp().item(), "accuracy": accuracy.item(),
                "norm": float(norm), "largest": max(float(weight.abs().max()) for weight in weights[:24]),
            })  # fmt: skip
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
