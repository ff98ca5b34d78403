"""Full fine-tune of a Llama (6 layers, width 2048) in bf16, 4 × 1024 tokens, with the settings of a notebook about
attention maps.
"""

from __future__ import annotations

import itertools

import torch

from scenarios.support import data, models
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    shape = {"hidden_size": 2048, "num_hidden_layers": 6, "num_key_value_heads": 8}
    attention = "sdpa" if run.fix in ("sdpa", "both") else "eager"
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, attention=attention, **shape)
    model.config.use_cache = run.fix not in ("cache_off", "both")
    shown = run.fix not in ("outputs_off", "sdpa", "both")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=not run.tiny)
    batches = itertools.repeat(data.full(model.config.vocab_size, *run.pick((4, 1024), (2, 16)), run.device))
    for step in run.steps():
        out = model(**next(batches), output_hidden_states=shown, output_attentions=shown)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {out.loss.item():.4f}")


if __name__ == "__main__":
    main(train)
