"""A small draft model trained on hidden states of a larger one that a loader holds: they come to the GPU from
pageable memory, blocking, and attention runs in its slowest form.
"""

from __future__ import annotations

import torch

from scenarios.support import models
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    kind = "sdpa" if run.fix in ("after", "sdpa") else "eager"
    shape = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 2, "num_attention_heads": 16}
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, attention=kind, **shape)
    width, rows, length = model.config.hidden_size, *run.pick((2, 2048), (1, 16))
    pinned = run.fix in ("after", "pinned") and not run.tiny
    held = [torch.randn(rows, length, width).to(torch.bfloat16) for _ in range(4)]
    held = [states.pin_memory() for states in held] if pinned else held
    wanted = [torch.randn(rows, length, width).to(torch.bfloat16) for _ in range(4)]
    wanted = [states.pin_memory() for states in wanted] if pinned else wanted
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    for step in run.steps():
        states = held[step % 4].to(run.device, non_blocking=pinned)
        target = wanted[step % 4].to(run.device, non_blocking=pinned)
        out = model.model(inputs_embeds=states).last_hidden_state
        loss = torch.nn.functional.smooth_l1_loss(out.float(), target.float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
