"""A Llama of 0.25 B parameters whose optimizer runs on the CPU, as offloading trainers do, on a GPU that is empty.

Gradients go to the CPU one after another, AdamW steps over float32 copies there, and the weights come back.
"""

from __future__ import annotations

import itertools

import torch

from scenarios.support import data, models
from scenarios.support.run import Run, main


class HostAdam:
    """AdamW over float32 copies in host memory. `pinned`: copies in page-locked memory that wait for nothing."""

    def __init__(self, weights: list[torch.nn.Parameter], pinned: bool, fused: bool) -> None:
        self.weights, self.pinned = weights, pinned
        self.masters = [self.host(weight) for weight in weights]
        for master in self.masters:
            master.grad = self.host(torch.zeros_like(master))
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-4, fused=fused or None)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        copied = tensor.detach().to("cpu", torch.float32)
        return copied.pin_memory() if self.pinned else copied

    def step(self) -> None:
        for weight, master in zip(self.weights, self.masters, strict=True):
            assert weight.grad is not None and master.grad is not None
            master.grad.copy_(weight.grad.float(), non_blocking=self.pinned)
            weight.grad = None
        if self.pinned:
            torch.cuda.synchronize()
        self.optimizer.step()
        with torch.no_grad():
            for weight, master in zip(self.weights, self.masters, strict=True):
                weight.copy_(master.to(weight.device, non_blocking=self.pinned))


def train(run: Run) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 14, "num_attention_heads": 16}
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, **shape)
    weights = list(model.parameters())
    if run.fix == "on_gpu":
        optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=not run.tiny)
    else:
        optimizer = HostAdam(weights, run.fix == "pinned" and not run.tiny, run.fix == "fused_cpu")
    batches = itertools.repeat(data.full(model.config.vocab_size, run.pick(4, 1), run.pick(1024, 16), run.device))
    for _ in run.steps():
        loss = model(**next(batches)).loss
        loss.backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
