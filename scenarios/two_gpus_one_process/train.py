"""LoRA on 8 of Llama-3.1-8B's 32 layers, spread over two GPUs by a device map, 4 x 1024 tokens."""

from __future__ import annotations

import itertools

import torch
from accelerate import dispatch_model

from scenarios.support import data, models
from scenarios.support.loop import finetune, trained
from scenarios.support.run import Run, main

LAYERS = 8


def train(run: Run) -> None:
    model = models.build("llama-3.1-8b", run.device, tiny=run.tiny, num_hidden_layers=LAYERS)
    if not run.tiny and run.fix != "one_gpu":
        model = dispatch_model(model, device_map())
    model = models.lora(model, rank=16)
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4)
    batch = data.full(model.config.vocab_size, run.pick(4, 1), run.pick(1024, 16), run.device)
    finetune(run, model, itertools.repeat(batch), optimizer)


def device_map() -> dict[str, int]:
    """The halves of the model, by module."""
    layers = {f"model.layers.{i}": int(i >= LAYERS // 2) for i in range(LAYERS)}
    return {"model.embed_tokens": 0, "model.rotary_emb": 0, **layers, "model.norm": 1, "lm_head": 1}


if __name__ == "__main__":
    main(train)
