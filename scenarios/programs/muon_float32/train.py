"""A Llama of 12 layers and width 1024, 8 × 1024 tokens, bf16 autocast, with a Muon that was written by hand: its
matrices are orthogonalised in the type of their gradients. Embeddings, norms and the head have AdamW.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import torch

from scenarios.support import data, models
from scenarios.support.run import Run, main

COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""Of Muon's Newton-Schulz iteration of the fifth order, as published."""


def orthogonal(gradient: torch.Tensor, dtype: torch.dtype, times: int = 5) -> torch.Tensor:
    """The nearest matrix with singular values of about one; of each matrix, where several are stacked."""
    a, b, c = COEFFICIENTS
    x = gradient.to(dtype)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(times):
        squared = x @ x.mT
        x = a * x + (b * squared + c * (squared @ squared)) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised. `stacked`: matrices of one shape together."""

    def __init__(self, matrices: list[torch.nn.Parameter], lr: float, dtype: torch.dtype, stacked: bool) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": 0.95})
        self.dtype, self.stacked = dtype, stacked

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            wanted = defaultdict(list)
            for matrix in group["params"]:
                momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - group["momentum"])
                direction = matrix.grad.lerp(momentum, group["momentum"])
                wanted[matrix.shape if self.stacked else matrix].append((matrix, direction))
            for together in wanted.values():
                matrices, directions = zip(*together, strict=True)
                rows, columns = matrices[0].shape
                scale = group["lr"] * max(1.0, rows / columns) ** 0.5
                steps = orthogonal(torch.stack(directions), self.dtype).float()
                torch._foreach_add_(list(matrices), list(steps.unbind()), alpha=-scale)


def train(run: Run) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16}
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, dtype=torch.float32, **shape, **heads)
    if run.fix == "tf32":
        torch.set_float32_matmul_precision("high")
    hidden = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and ".layers." in name]
    others = [weight for name, weight in model.named_parameters() if weight.ndim < 2 or ".layers." not in name]
    dtype = torch.bfloat16 if run.fix.startswith("bf16") else torch.float32
    muon = Muon(hidden, 0.02, dtype, run.fix == "bf16_stacked")
    adam = torch.optim.AdamW(others, lr=3e-4, fused=not run.tiny)
    length, batch = run.pick((1024, 8), (16, 2))
    batches = itertools.repeat(data.full(model.config.vocab_size, batch, length, run.device))
    for _ in run.steps():
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            loss = model(**next(batches)).loss
        loss.backward()
        muon.step()
        adam.step()
        model.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
