"""FSDP on two GPUs: full fine-tune of 6 of Llama-3.1-8B's 32 layers in bf16, 4 x 1024 tokens a rank."""

from __future__ import annotations

import itertools

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from scenarios.support import data, models
from scenarios.support.loop import finetune
from scenarios.support.ranks import ranks
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    with ranks(run) as (_, world):
        model = models.build("llama-3.1-8b", run.device, tiny=run.tiny, num_hidden_layers=6)
        mesh = init_device_mesh("cpu" if run.tiny else "cuda", (world,))
        if run.fix == "by_layer":
            for layer in model.model.layers:
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=not run.tiny)
        batch = data.full(model.config.vocab_size, run.pick(4, 1), run.pick(1024, 16), run.device)
        finetune(run, model, itertools.repeat(batch), optimizer)


if __name__ == "__main__":
    main(train)
