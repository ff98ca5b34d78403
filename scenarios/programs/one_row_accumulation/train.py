"""Full fine-tune of four layers of Llama 3.1 8B in bf16, rows of 384 tokens, 16 rows an optimizer step, with
the settings of a card with 24 GB.
"""

from __future__ import annotations

import torch

from scenarios.support import data, models
from scenarios.support.run import Run, main

ROWS = 16
"""Of an optimizer step."""


def train(run: Run) -> None:
    shape = {"num_hidden_layers": 4, "vocab_size": 32_000}
    model = models.build("llama-3.1-8b", run.device, tiny=run.tiny, **shape)
    if run.fix not in ("no_checkpointing", "both"):
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=not run.tiny)
    per_pass = 8 if run.fix in ("eight_rows", "both") else 1
    rows = data.full(model.config.vocab_size, ROWS, run.pick(384, 16), "cpu")["input_ids"]
    pinned = run.fix == "pinned" and not run.tiny
    passes = [part.pin_memory() if pinned else part for part in rows.split(per_pass)]
    for _ in run.steps():
        for part in passes:
            tokens = part.to(run.device, non_blocking=pinned)
            loss = model(input_ids=tokens, labels=tokens).loss / len(passes)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
