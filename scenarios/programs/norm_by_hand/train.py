"""A ViT (12 layers, width 384, 32 images of 224 × 224) in float32 weights and bf16 autocast; clipping, weight decay and
the average of the weights are written out in the loop.
"""

from __future__ import annotations

import copy

import torch
from torch.nn import functional

from scenarios.support.run import Run, main

RATE, DECAY, KEEP, LARGEST = 1e-4, 0.05, 0.999, 1.0


class Classifier(torch.nn.Module):
    """Images → logits of 100 classes."""

    def __init__(self, size: int, patch: int, width: int, layers: int) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, width, patch, patch)
        self.places = torch.nn.Parameter(torch.randn(1, (size // patch) ** 2, width) * 0.02)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, 6, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, 100)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        states = self.patches(images).flatten(2).mT + self.places
        for layer in self.layers:
            states = layer(states)
        return self.head(self.norm(states.mean(1)))


def clip_gradients(model: torch.nn.Module) -> dict[str, float]:
    """Scales gradients so that their norm is at most LARGEST. Returns the norm of each."""
    norms = {}
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            norms[name] = weight.grad.detach().norm(2).item()
    total = sum(norm**2 for norm in norms.values()) ** 0.5
    if total > LARGEST:
        for weight in model.parameters():
            if weight.grad is not None:
                weight.grad.mul_(LARGEST / (total + 1e-6))
    return norms


@torch.no_grad()
def average(model: torch.nn.Module, ema: torch.nn.Module) -> None:
    for weight, mean in zip(model.parameters(), ema.parameters(), strict=True):
        mean.copy_(KEEP * mean + (1 - KEEP) * weight)


@torch.no_grad()
def average_at_once(weights: list[torch.Tensor], means: list[torch.Tensor]) -> None:
    torch._foreach_lerp_(means, weights, 1 - KEEP)


def train(run: Run) -> None:
    torch.manual_seed(0)
    size, patch, width, layers, images = run.pick((224, 16, 384, 12, 32), (32, 16, 48, 2, 2))
    torch.backends.cudnn.benchmark = run.fix == "cudnn_benchmark"
    model = Classifier(size, patch, width, layers).to(run.device).train()
    ema = copy.deepcopy(model).requires_grad_(False)
    weights, means = list(model.parameters()), list(ema.parameters())
    decayed = [weight for weight in weights if weight.ndim > 1]
    if run.fix == "all":
        rest = [weight for weight in weights if weight.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=RATE)
    else:
        optimizer = torch.optim.Adam(weights, lr=RATE)
    pixels = torch.randn(images, 3, size, size, device=run.device)
    labels = torch.randint(0, 100, (images,), device=run.device)
    for step in run.steps():
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            loss = functional.cross_entropy(model(pixels).float(), labels)
        loss.backward()
        if run.fix in ("clip_grad_norm", "all"):
            torch.nn.utils.clip_grad_norm_(weights, LARGEST)
        else:
            norms = clip_gradients(model)
            if step % 50 == 0:
                print(f"step {step}: largest gradient {max(norms, key=lambda name: norms[name])}")
        if run.fix != "all":
            for weight in decayed:
                weight.data.mul_(1 - RATE * DECAY)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if run.fix in ("foreach_average", "all"):
            average_at_once(weights, means)
        else:
            average(model, ema)


if __name__ == "__main__":
    main(train)
