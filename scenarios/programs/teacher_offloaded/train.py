"""Distillation from a teacher that accelerate keeps on the CPU (`cpu_offload`), on a GPU with room for it."""

from __future__ import annotations

import itertools

import torch
from accelerate import cpu_offload

from scenarios.support import data, models
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16}
    teacher = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, num_hidden_layers=12, **shape).eval()
    if run.fix != "on_gpu":
        teacher = teacher.to("cpu")
        if run.fix == "pinned" and not run.tiny:
            for weight in teacher.parameters():
                weight.data = weight.data.pin_memory()
        cpu_offload(teacher, execution_device=torch.device(run.device))
    student = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, num_hidden_layers=4, **shape)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, fused=not run.tiny)
    batches = itertools.repeat(data.full(student.config.vocab_size, run.pick(2, 1), run.pick(1024, 16), run.device))
    for _ in run.steps():
        tokens = next(batches)["input_ids"]
        with torch.no_grad():
            wanted = torch.log_softmax(teacher(input_ids=tokens).logits.float(), -1)
        seen = torch.log_softmax(student(input_ids=tokens).logits.float(), -1)
        loss = (
            torch.nn.functional.kl_div(seen, wanted.to(seen.device), log_target=True, reduction="sum") / tokens.numel()
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
