"""Distillation of a Llama of 4 layers (bf16 weights) from one of 12 in float32, width 1024, 4 × 1024 tokens."""

from __future__ import annotations

import contextlib
import itertools

import torch

from scenarios.support import data, models
from scenarios.support.run import Run, main

TOP = 64


def divergence(student: torch.Tensor, teacher: torch.Tensor, top: int | None = None) -> torch.Tensor:
    """KL per token from the teacher's logits to the student's. `top`: of the teacher's likeliest words alone."""
    student, teacher = student.float().flatten(0, 1), teacher.float().flatten(0, 1)
    wanted = torch.log_softmax(teacher, -1)
    given = torch.log_softmax(student, -1)
    if top is not None:
        wanted, at = wanted.topk(top, -1)
        given = given.gather(-1, at)
    return torch.nn.functional.kl_div(given, wanted, log_target=True, reduction="sum") / len(student)


def train(run: Run) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16}
    teacher = models.build(
        "tinyllama-1.1b", run.device, tiny=run.tiny, dtype=torch.float32, num_hidden_layers=12, **shape
    ).eval()
    if run.fix in ("teacher_bf16", "both"):
        for weight in teacher.parameters():  # rotary frequencies stay in float32
            weight.data = weight.data.to(torch.bfloat16)
    student = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, num_hidden_layers=4, **shape)
    models.randomize(student)  # unlike the teacher, also where both are tiny
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, fused=not run.tiny)
    batches = itertools.repeat(data.full(student.config.vocab_size, run.pick(4, 1), run.pick(1024, 16), run.device))
    top = run.pick(TOP, 8) if run.fix == "top_logits" else None
    for _ in run.steps():
        tokens = next(batches)["input_ids"]
        with torch.no_grad() if run.fix in ("no_grad", "both") else contextlib.nullcontext():
            wanted = teacher(input_ids=tokens).logits
        logits = student(input_ids=tokens).logits
        loss = divergence(logits, wanted.detach(), top)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
