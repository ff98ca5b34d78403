"""LoRA on the queries and values of TinyLlama-1.1B, 8 sequences of 512 tokens a step, none packed or padded.

torch.cuda.empty_cache() after the forward pass and after the optimizer, against an out-of-memory error of long ago.
"""

from __future__ import annotations

import torch

from scenarios.support import data, models
from scenarios.support.loop import trained
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    model = models.lora(models.build("tinyllama-1.1b", run.device, tiny=run.tiny), modules=["q_proj", "v_proj"])
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4)
    batch = data.full(model.config.vocab_size, run.pick(8, 2), run.pick(512, 16), run.device)
    for _ in run.steps():
        loss = model(**batch).loss
        if run.fix != "no_empty_cache":
            torch.cuda.empty_cache()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if run.fix != "no_empty_cache":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(train)
