"""A Llama of 8 layers, width 1024, 8 × 1024 tokens in bf16, whose norms compute in float64 "to be safe"."""

from __future__ import annotations

import itertools

import torch
from torch.nn import functional

from scenarios.support import data, models
from scenarios.support.run import Run, main


class CarefulNorm(torch.nn.Module):
    """RMSNorm in a wide type, op by op; `fused`: as one op of PyTorch."""

    def __init__(self, width: int, eps: float, wide: torch.dtype, fused: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.eps, self.wide, self.fused = eps, wide, fused

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        if self.fused:
            return functional.rms_norm(states, self.weight.shape, self.weight, self.eps)
        x = states.to(self.wide)
        scale = torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps)
        return (x / scale * self.weight.to(self.wide)).to(states.dtype)


def replace_norms(model: torch.nn.Module, wide: torch.dtype, fused: bool) -> None:
    """Puts such a norm in the place of every RMSNorm."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                norm = CarefulNorm(child.weight.numel(), child.variance_epsilon, wide, fused)
                setattr(parent, name, norm.to(child.weight.device, child.weight.dtype))


def train(run: Run) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16}
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, **shape)
    replace_norms(model, torch.float32 if run.fix == "float32" else torch.float64, run.fix == "rms_norm")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    batches = itertools.repeat(data.full(model.config.vocab_size, run.pick(8, 1), run.pick(1024, 16), run.device))
    for _ in run.steps():
        loss = model(**next(batches)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
