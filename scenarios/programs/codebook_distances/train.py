"""A neural audio codec: convolutions, eight residual quantisers of 1024 codes, convolutions back; 32 clips of 2 s at
24 kHz become 75 vectors per second of width 128; bf16 autocast around the convolutions.

How many codes of each quantiser are in use is kept for the log in each step.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from scenarios.support.run import Run, main

STRIDES = (2, 4, 5, 8)
EVERY = 100


def nearest(vectors: torch.Tensor, codes: torch.Tensor, how: str) -> torch.Tensor:
    """The number of the nearest code of each vector; `vectors`: (count, width), `codes`: (codes, width)."""
    if how == "multiplied":
        distances = vectors.square().sum(1, keepdim=True) - 2 * vectors @ codes.T + codes.square().sum(1)
    elif how == "cdist":
        distances = torch.cdist(vectors, codes)
    else:
        distances = (vectors.unsqueeze(1) - codes.unsqueeze(0)).pow(2).sum(-1)
    return distances.argmin(1)


class Quantiser(nn.Module):
    """The nearest codes, straight through for gradients."""

    def __init__(self, codes: int, width: int, how: str) -> None:
        super().__init__()
        self.codes, self.how = nn.Parameter(torch.randn(codes, width) * 0.1), how

    def forward(self, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Quantised vectors, the numbers of their codes, the loss."""
        with torch.no_grad():
            numbers = nearest(vectors, self.codes, self.how)
        quantised = functional.embedding(numbers, self.codes)
        loss = functional.mse_loss(quantised, vectors.detach()) + 0.25 * functional.mse_loss(
            vectors, quantised.detach()
        )
        return vectors + (quantised - vectors).detach(), numbers, loss


class Codec(nn.Module):
    def __init__(self, channels: int, width: int, codes: int, quantisers: int, how: str) -> None:
        super().__init__()
        inward: list[nn.Module] = [nn.Conv1d(1, channels, 7, padding=3)]
        outward: list[nn.Module] = [nn.Conv1d(channels, 1, 7, padding=3)]
        for stride in STRIDES:
            padding = (stride + 1) // 2
            inward += [nn.ELU(), nn.Conv1d(channels, 2 * channels, 2 * stride, stride, padding)]
            back = nn.ConvTranspose1d(2 * channels, channels, 2 * stride, stride, padding, output_padding=stride % 2)
            outward = [back, nn.ELU(), *outward]
            channels *= 2
        self.inward = nn.Sequential(*inward, nn.ELU(), nn.Conv1d(channels, width, 3, padding=1))
        self.outward = nn.Sequential(nn.Conv1d(width, channels, 3, padding=1), nn.ELU(), *outward)
        self.quantisers = nn.ModuleList(Quantiser(codes, width, how) for _ in range(quantisers))

    def forward(self, sound: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        """Sound back from its codes, the codes of each quantiser, the loss of all quantisers."""
        device = sound.device.type
        with torch.autocast(device, torch.bfloat16):
            features = self.inward(sound)
        batch, width, frames = features.shape
        rest = features.float().transpose(1, 2).reshape(-1, width)
        total, numbers, losses = torch.zeros_like(rest), [], []
        for quantiser in self.quantisers:
            quantised, chosen, loss = quantiser(rest)
            rest, total = rest - quantised.detach(), total + quantised
            numbers.append(chosen)
            losses.append(loss)
        with torch.autocast(device, torch.bfloat16):
            back = self.outward(total.view(batch, frames, width).transpose(1, 2))
        return back, numbers, torch.stack(losses).mean()


def train(run: Run) -> None:
    torch.manual_seed(0)
    channels, width, codes, quantisers = run.pick((32, 128, 1024, 8), (2, 8, 16, 2))
    batch, samples = run.pick((32, 48_000), (2, 1280))
    how = run.fix if run.fix in ("multiplied", "cdist") else "broadcast"
    model = Codec(channels, width, codes, quantisers, how).to(run.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=not run.tiny)
    sound = torch.randn(batch, 1, samples, device=run.device)
    used = []
    for step in run.steps():
        back, numbers, loss = model(sound)
        (functional.l1_loss(back.float(), sound[..., : back.shape[-1]]) + loss).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if run.fix != "usage_seldom" or step % EVERY == 0:
            used = [len(chosen.unique()) / codes for chosen in numbers]
    print("codes in use", used)


if __name__ == "__main__":
    main(train)
