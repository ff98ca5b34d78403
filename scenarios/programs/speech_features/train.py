"""An Audio Spectrogram Transformer (12 layers, width 384) on 16 clips of 10 s, bf16 autocast; the collator turns
waveforms into log-mel frames, as Kaldi computes them.
"""

from __future__ import annotations

import math

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler
from transformers import ASTConfig, ASTForAudioClassification

from scenarios.support.data import endless
from scenarios.support.run import Run, main

RATE, WINDOW, SHIFT, FOURIER = 16_000, 400, 160, 512


def filters(count: int) -> torch.Tensor:
    """Triangular filters on the mel scale: frequencies × count."""
    mel = torch.linspace(1127 * math.log1p(20 / 700), 1127 * math.log1p(RATE / 2 / 700), count + 2)
    hertz = torch.linspace(0, RATE / 2, FOURIER // 2 + 1)
    at = 1127 * torch.log1p(hertz / 700)[:, None]
    rising, falling = (at - mel[:-2]) / (mel[1:-1] - mel[:-2]), (mel[2:] - at) / (mel[2:] - mel[1:-1])
    return torch.minimum(rising, falling).clamp(min=0)


class LogMel:
    """Samples of sound, … × samples → … × frames × filters."""

    def __init__(self, count: int, device: str) -> None:
        self.filters = filters(count).to(device)
        self.window = torch.hann_window(WINDOW, periodic=False, device=device).pow(0.85)

    def __call__(self, waves: torch.Tensor) -> torch.Tensor:
        frames = waves.unfold(-1, WINDOW, SHIFT)
        frames = frames - frames.mean(-1, keepdim=True)
        before = torch.cat((frames[..., :1], frames[..., :-1]), -1)
        frames = (frames - 0.97 * before) * self.window
        power = torch.fft.rfft(frames, FOURIER).abs().square()
        logs = (power @ self.filters).clamp(min=torch.finfo(torch.float32).eps).log()
        return (logs + 4.27) / (2 * 4.57)


class Clips(Dataset):
    """Clips of 16-bit samples and their classes. `features`: computes what a clip is given as, once for all."""

    def __init__(self, count: int, samples: int, features: LogMel | None) -> None:
        rng = torch.Generator().manual_seed(0)
        self.sounds = torch.randint(-8000, 8000, (count, samples), generator=rng, dtype=torch.int16)
        self.classes = torch.randint(0, 50, (count,), generator=rng)
        self.ready = [features(self.wave(i)) for i in range(count)] if features else None

    def wave(self, index: int) -> torch.Tensor:
        return self.sounds[index].float() / 32_768

    def __len__(self) -> int:
        return len(self.sounds)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.ready[index] if self.ready else self.wave(index), int(self.classes[index])


class Collator:
    """Stacks clips, whose features it computes one after another, if it is given what computes them."""

    def __init__(self, features: LogMel | None) -> None:
        self.features = features

    def __call__(self, clips: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = [self.features(wave) if self.features else wave for wave, _ in clips]
        return torch.stack(inputs), torch.tensor([label for _, label in clips])


def train(run: Run) -> None:
    torch.manual_seed(0)
    batch, count, frames, mels = run.pick((16, 256, 1024, 128), (2, 8, 32, 16))
    shape = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 6}
    tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = ASTForAudioClassification(
        ASTConfig(**run.pick(shape, tiny), num_mel_bins=mels, max_length=frames, num_labels=50)
    )
    model.to(run.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=not run.tiny)
    on_cpu = LogMel(mels, "cpu")
    on_gpu = LogMel(mels, run.device) if run.fix == "on_gpu" else None
    once = run.fix == "once"
    clips = Clips(count, (frames - 1) * SHIFT + WINDOW, on_cpu if once else None)
    loader = DataLoader(
        clips,
        batch,
        sampler=RandomSampler(clips, replacement=True, num_samples=100_000),
        num_workers=run.pick(8, 1) if run.fix == "workers" else 0,
        pin_memory=run.fix == "pinned" and not run.tiny,
        collate_fn=Collator(None if once or on_gpu else on_cpu),
    )
    batches = endless(loader)
    for _ in run.steps():
        inputs, labels = (tensor.to(run.device, non_blocking=True) for tensor in next(batches))
        if on_gpu:
            inputs = on_gpu(inputs)
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            loss = model(input_values=inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
