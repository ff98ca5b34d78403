"""LoRA on a Llama of 12 layers, width 1024, 4 × 512 tokens; the loop collects garbage and empties the cache each step.

Both were put in against an out-of-memory error that is long gone.
"""

from __future__ import annotations

import gc
import itertools

import torch

from scenarios.support import data, models
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16}
    model = models.lora(models.build("tinyllama-1.1b", run.device, tiny=run.tiny, **shape))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=2e-4)
    batches = itertools.repeat(data.full(32_000 if not run.tiny else 512, *run.pick((4, 512), (1, 16)), run.device))
    collects, empties = run.fix not in ("no_gc", "neither"), run.fix not in ("no_empty_cache", "neither")
    for _ in run.steps():
        out = model(**next(batches))
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del out
        if collects:
            gc.collect()
        if empties and not run.tiny:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(train)
