"""Full fine-tune of four layers of Llama 3.1 8B, with both embeddings: one sequence of 256 tokens, nothing padded.

Weights and AdamW's states are float32; the model computes in bf16 under autocast.
"""

from __future__ import annotations

import torch

from scenarios.support import data, models
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    model = models.build("llama-3.1-8b", run.device, tiny=run.tiny, dtype=torch.float32, num_hidden_layers=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True if run.fix == "fused" else None)
    batch = data.full(model.config.vocab_size, 8 if run.fix == "batch_8" else 1, run.pick(256, 16), run.device)
    device = torch.device(run.device).type
    for _ in run.steps():
        with torch.autocast(device, torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
