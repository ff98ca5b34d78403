"""LoRA on TinyLlama-1.1B cut to 4 of its 22 layers, 16 sequences of 2048 tokens a step, none packed or padded. Every 4
steps all weights (the frozen ones too) and the optimizer's state, 0.6 GB, are saved to the local disk.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import torch

from scenarios.support import data, models
from scenarios.support.loop import finetune, trained
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    model = models.lora(
        models.build("tinyllama-1.1b", run.device, tiny=run.tiny, num_hidden_layers=4), rank=16, casts=False
    )
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4)
    batch = data.full(model.config.vocab_size, run.pick(16, 2), run.pick(2048, 16), run.device)
    every = run.pick(4, 2) * (10 if run.fix == "rarer" else 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"

        def save(step: int, loss: torch.Tensor) -> None:
            if (step + 1) % every == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

        finetune(run, model, itertools.repeat(batch), optimizer, after=save)


if __name__ == "__main__":
    main(train)
