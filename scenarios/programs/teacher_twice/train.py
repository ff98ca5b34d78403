"""Distillation from a teacher that runs twice on the same tokens, and with gradients nobody asks for."""

from __future__ import annotations

import contextlib
import itertools

import torch

from scenarios.support import data, models
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16}
    teacher = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, num_hidden_layers=12, **shape)
    student = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, num_hidden_layers=4, **shape)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, fused=not run.tiny)
    batches = itertools.repeat(data.full(student.config.vocab_size, run.pick(2, 1), run.pick(1024, 16), run.device))
    once, frozen = run.fix in ("once", "both"), run.fix in ("no_grad", "both")
    for _ in run.steps():
        tokens = next(batches)["input_ids"]
        with torch.no_grad() if frozen else contextlib.nullcontext():
            seen = teacher(input_ids=tokens, output_hidden_states=once)
            states = seen.hidden_states if once else teacher(input_ids=tokens, output_hidden_states=True).hidden_states
        out = student(input_ids=tokens, output_hidden_states=True)
        wanted = torch.log_softmax(seen.logits.detach().float(), -1)
        soft = torch.nn.functional.kl_div(
            torch.log_softmax(out.logits.float(), -1), wanted, log_target=True, reduction="sum"
        )
        near = (out.hidden_states[-1] - states[-1].detach()).float().pow(2).mean()
        loss = soft / tokens.numel() + near
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
