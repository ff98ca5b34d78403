"""A Llama of 0.25 B parameters under FSDP2 with `CPUOffloadPolicy`, on one GPU that is empty.

Shards lie in host memory: they are copied to the GPU for each layer, gradients go back, and AdamW steps on the CPU.
"""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

from scenarios.support import data, models
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    kind = "cpu" if run.tiny else "cuda"
    if not run.tiny:
        torch.cuda.set_device(run.device)
    dist.init_process_group("gloo" if run.tiny else "nccl", store=dist.HashStore(), rank=0, world_size=1)
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 14, "num_attention_heads": 16}
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, **shape)
    mesh = init_device_mesh(kind, (1,))
    offload = OffloadPolicy() if run.fix == "on_gpu" else CPUOffloadPolicy(pin_memory=not run.tiny)
    for layer in [*model.model.layers, model]:
        fully_shard(layer, mesh=mesh, offload_policy=offload)
    fused = True if run.fix in ("on_gpu", "fused_cpu") else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    batches = itertools.repeat(data.full(model.config.vocab_size, run.pick(4, 1), run.pick(1024, 16), run.device))
    for _ in run.steps():
        loss = model(**next(batches)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(train)
