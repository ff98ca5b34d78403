"""A network that refines its state 24 times by one block, with a head that judges each state; all layers have spectral
norms, width 512, 256 samples, float32.
"""

from __future__ import annotations

import contextlib

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

from scenarios.support.run import Run, main


class Refiner(nn.Module):
    """Features → a state for each round, and logits of ten classes for each."""

    def __init__(self, width: int, rounds: int, normed: bool) -> None:
        super().__init__()
        kept = spectral_norm if normed else lambda layer: layer
        self.rounds = rounds
        self.inject = kept(nn.Linear(width, width))
        self.block = nn.ModuleList(kept(nn.Linear(width, width)) for _ in range(3))
        self.head = nn.Sequential(kept(nn.Linear(width, width)), nn.ReLU(), kept(nn.Linear(width, 10)))

    def states(self, features: torch.Tensor) -> list[torch.Tensor]:
        state = torch.zeros_like(features)
        found = []
        for _ in range(self.rounds):
            inner = state + self.inject(features)
            for layer in self.block:
                inner = functional.silu(layer(inner))
            state = state + 0.5 * (inner - state)
            found.append(state)
        return found

    def forward(self, features: torch.Tensor, at_once: bool = False) -> torch.Tensor:
        """Logits of rounds × samples × classes."""
        states = self.states(features)
        return self.head(torch.stack(states)) if at_once else torch.stack([self.head(state) for state in states])


def train(run: Run) -> None:
    torch.manual_seed(0)
    width, rounds, samples = run.pick((512, 24, 256), (32, 4, 8))
    if run.fix == "tf32":
        torch.set_float32_matmul_precision("high")
    model = Refiner(width, rounds, run.fix != "plain_layers").to(run.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    features = torch.randn(samples, width, device=run.device)
    labels = torch.randint(0, 10, (samples,), device=run.device)
    for step in run.steps():
        with parametrize.cached() if run.fix == "cached" else contextlib.nullcontext():
            logits = model(features, run.fix == "head_at_once")
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.repeat(rounds))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main(train)
