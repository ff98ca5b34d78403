"""Distillation on the 64 likeliest tokens of a teacher, which are found by sorting its whole vocabulary of 32,000.

Teacher and student are Llamas of width 1024 with 8 and 4 layers; 2 × 2048 tokens in bf16.
"""

from __future__ import annotations

import itertools

import torch

from scenarios.support import data, models
from scenarios.support.run import Run, main


def likeliest(run: Run, logits: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the likeliest tokens among themselves, and which tokens these are."""
    if run.fix in ("topk", "topk_gathered"):
        values, tokens = torch.topk(logits, most, dim=-1)
    elif run.fix == "sort_bf16":
        values, tokens = (each[..., :most] for each in torch.sort(logits, dim=-1, descending=True))
    else:
        values, tokens = (each[..., :most] for each in torch.sort(logits.float(), dim=-1, descending=True))
    return torch.log_softmax(values.float(), -1), tokens


def train(run: Run) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16}
    teacher = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, num_hidden_layers=8, **shape).eval()
    student = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, num_hidden_layers=4, **shape)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, fused=not run.tiny)
    batches = itertools.repeat(data.full(student.config.vocab_size, run.pick(2, 1), run.pick(2048, 16), run.device))
    most = run.pick(64, 8)
    for _ in run.steps():
        inputs = {"input_ids": next(batches)["input_ids"]}
        with torch.no_grad():
            wanted, tokens = likeliest(run, teacher(**inputs).logits, most)
        logits = student(**inputs).logits
        if run.fix == "topk_gathered":
            whole = torch.logsumexp(logits.float(), -1, keepdim=True)
            said = logits.gather(-1, tokens).float() - whole
        else:
            said = torch.log_softmax(logits.float(), -1).gather(-1, tokens)
        loss = (wanted.exp() * (wanted - said)).sum(-1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
