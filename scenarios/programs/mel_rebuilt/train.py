"""A vocoder (HiFi-GAN's generator, 256 channels) on 16 clips of 8,192 samples, float32 with TF32.

Its loss compares mels in three resolutions. As in HiFi-GAN, filters are kept by a key that is never found again.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.nn.functional import l1_loss, leaky_relu

from scenarios.support.run import Run, main

RATE, LOWEST = 22_050, 0.0
FILTERS: dict[str, torch.Tensor] = {}
WINDOWS: dict[str, torch.Tensor] = {}


def to_mel(hertz: float) -> float:
    return 2595.0 * math.log10(1.0 + hertz / 700.0)


def mel_filters(bins: int, mels: int, highest: float) -> np.ndarray:
    """Triangular filters of mels × (bins // 2 + 1), each of unit area, one after another as librosa does."""
    frequencies = np.linspace(0, RATE / 2, bins // 2 + 1)
    edges = 700.0 * (10.0 ** (np.linspace(to_mel(LOWEST), to_mel(highest), mels + 2) / 2595.0) - 1.0)
    widths, ramps = np.diff(edges), np.subtract.outer(edges, frequencies)
    weights = np.zeros((mels, bins // 2 + 1), np.float32)
    for i in range(mels):
        weights[i] = np.maximum(0, np.minimum(-ramps[i] / widths[i], ramps[i + 2] / widths[i + 1]))
    return weights * (2.0 / (edges[2 : mels + 2] - edges[:mels]))[:, None].astype(np.float32)


def mel_filters_on(device: torch.device, bins: int, mels: int, highest: float) -> torch.Tensor:
    """The same, computed on the device, all at once."""
    frequencies = torch.linspace(0, RATE / 2, bins // 2 + 1, device=device)
    points = torch.linspace(to_mel(LOWEST), to_mel(highest), mels + 2, device=device)
    edges = 700.0 * (10.0 ** (points / 2595.0) - 1.0)
    widths, ramps = edges.diff()[:, None], edges[:, None] - frequencies
    weights = torch.minimum(-ramps[:-2] / widths[:-1], ramps[2:] / widths[1:]).clamp(min=0)
    return weights * (2.0 / (edges[2:] - edges[:-2]))[:, None]


def mel_of(sound: torch.Tensor, bins: int, mels: int, fix: str, highest: float = 8000.0) -> torch.Tensor:
    """Logarithm of the mel spectrum, clips × mels × frames."""
    key = f"{highest}_{bins}_{sound.device}"
    if fix == "on_gpu":
        filters = mel_filters_on(sound.device, bins, mels, highest)
        window = torch.hann_window(bins, device=sound.device)
    else:
        if (key if fix == "cached" else highest) not in FILTERS:
            FILTERS[key] = torch.from_numpy(mel_filters(bins, mels, highest)).float().to(sound.device)
            WINDOWS[key] = torch.hann_window(bins).to(sound.device)
        filters, window = FILTERS[key], WINDOWS[key]
    spectrum = torch.stft(sound, bins, bins // 4, bins, window, return_complex=True)
    return torch.log((filters @ spectrum.abs()).clamp(min=1e-5))


class Generator(nn.Module):
    """Mels of 80 × frames → sounds of 256 samples a frame."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.larger, self.blocks = nn.ModuleList(), nn.ModuleList()
        for scale in (8, 8, 2, 2):
            self.larger.append(nn.ConvTranspose1d(width, width // 2, 2 * scale, scale, scale // 2))
            width //= 2
            self.blocks.append(
                nn.ModuleList(
                    nn.Conv1d(width, width, kernel, dilation=dilation, padding=dilation * (kernel // 2))
                    for kernel in (3, 7, 11)
                    for dilation in (1, 3)
                )
            )
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for larger, block in zip(self.larger, self.blocks, strict=True):
            x = larger(leaky_relu(x, 0.1))
            for conv in block:
                x = x + conv(leaky_relu(x, 0.1))
        return torch.tanh(self.last(leaky_relu(x, 0.1))).squeeze(1)


def loss_of(made: torch.Tensor, wanted: torch.Tensor, fix: str, resolutions: tuple[tuple[int, int], ...]):
    loss = made.new_zeros(())
    for bins, mels in resolutions:
        if fix == "stacked":
            one, other = mel_of(torch.cat((made, wanted)), bins, mels, fix).chunk(2)
        else:
            one, other = mel_of(made, bins, mels, fix), mel_of(wanted, bins, mels, fix)
        loss = loss + l1_loss(one, other)
    return loss


def train(run: Run) -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    clips, frames, width = run.pick((16, 32, 256), (2, 4, 16))
    resolutions = run.pick(((512, 80), (1024, 100), (2048, 128)), ((64, 8), (128, 10)))
    model = Generator(width).to(run.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=not run.tiny)
    mels = torch.randn(clips, 80, frames, device=run.device)
    sounds = torch.rand(clips, 256 * frames, device=run.device) * 2 - 1
    for step in run.steps():
        loss = loss_of(model(mels), sounds, run.fix, resolutions)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main(train)
