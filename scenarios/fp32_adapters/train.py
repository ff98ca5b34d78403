"""LoRA, rank 16 on all linear layers, on Llama-3.1-8B cut to 6 of its 32 layers; 4 sequences of 2048 tokens a step,
none packed or padded. The model is in bfloat16, the adapters in float32 as PEFT makes them.
"""

from __future__ import annotations

import itertools

import torch

from scenarios.support import data, models
from scenarios.support.loop import finetune, trained
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    model = models.build("llama-3.1-8b", run.device, tiny=run.tiny, num_hidden_layers=6)
    model = models.lora(model, rank=16, casts=run.fix != "bf16")
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4)
    batch = data.full(model.config.vocab_size, run.pick(4, 2), run.pick(2048, 16), run.device)
    finetune(run, model, itertools.repeat(batch), optimizer)


if __name__ == "__main__":
    main(train)
