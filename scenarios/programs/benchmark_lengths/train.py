"""Speech recognition with Lightning: two convolutions over log-mel features (80 × 600 to 1600 frames), three
bidirectional GRUs of 512 and a CTC loss, bf16 autocast, 24 clips of similar length a batch.
"""

from __future__ import annotations

import random
import tempfile

import lightning
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from scenarios.support.run import Run, main

LETTERS, BINS = 29, 80
Sample = tuple[torch.Tensor, torch.Tensor]
Batch = tuple[torch.Tensor, torch.Tensor, list[int], list[int]]


class Clips(Dataset):
    """Features of clips (frames × bins) that were computed before, and their letters."""

    def __init__(self, frames: list[int]) -> None:
        self.frames = frames
        self.features = torch.randn(4 * max(frames), BINS)
        self.letters = torch.randint(1, LETTERS, (4 * max(frames),))

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Sample:
        frames = self.frames[index]
        start = 13 * index % (3 * max(1, min(self.frames)))
        return self.features[start : start + frames], self.letters[start : start + frames // 8]


class Padded:
    """Pads clips to the longest of their batch, or further to a multiple of frames."""

    def __init__(self, multiple: int) -> None:
        self.multiple = multiple

    def __call__(self, samples: list[Sample]) -> Batch:
        features, letters = zip(*samples, strict=True)
        padded = pad_sequence(features, batch_first=True)
        padded = functional.pad(padded, (0, 0, 0, -padded.shape[1] % self.multiple))
        frames = [len(feature) for feature in features]
        return padded, torch.cat(letters), frames, [len(letter) for letter in letters]


def grouped(frames: list[int], batch: int) -> list[list[int]]:
    """Batches of clips of similar length, in random order."""
    order = sorted(range(len(frames)), key=frames.__getitem__)
    batches = [order[i : i + batch] for i in range(0, len(order) - batch + 1, batch)]
    random.shuffle(batches)
    return batches


class Recognizer(lightning.LightningModule):
    def __init__(self, channels: int, width: int, layers: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, channels, (11, 41), (2, 2), (5, 20)), nn.BatchNorm2d(channels), nn.Hardtanh(0, 20),
            nn.Conv2d(channels, channels, (11, 21), (1, 2), (5, 10)), nn.BatchNorm2d(channels), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.recurrent = nn.GRU(channels * BINS // 4, width, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, LETTERS)

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        features, letters, frames, written = batch
        convolved = self.convolutions(features.unsqueeze(1))
        recurrent, _ = self.recurrent(convolved.transpose(1, 2).flatten(2))
        scores = self.head(recurrent).float().log_softmax(-1).transpose(0, 1)
        steps = torch.tensor([(count + 1) // 2 for count in frames])
        loss = functional.ctc_loss(scores, letters, steps, torch.tensor(written), zero_infinity=True)
        self.log("loss", loss, batch_size=len(frames))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


class Clock(lightning.Callback):
    """Ends each step of the run."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        self.run.end_step(trainer.global_step - 1)
        trainer.should_stop |= trainer.global_step >= self.run.count

    def on_train_end(self, *_: object) -> None:
        self.run.end()


def train(run: Run) -> None:
    torch.manual_seed(0)
    random.seed(0)
    shortest, longest, many, batch = run.pick((600, 1600, 24_000, 24), (24, 48, 64, 2))
    channels, width, layers, multiple = run.pick((32, 512, 3, 200), (4, 8, 1, 16))
    frames = [random.randint(shortest, longest) for _ in range(many)]
    loader = DataLoader(
        Clips(frames), batch_sampler=grouped(frames, batch), collate_fn=Padded(multiple if run.fix == "padded" else 1),
        num_workers=run.pick(4, 0), pin_memory=not run.tiny,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            default_root_dir=folder, accelerator="cpu" if run.tiny else "gpu", devices=1, precision="bf16-mixed",
            max_steps=1_000_000, logger=False, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, gradient_clip_val=1.0, callbacks=[Clock(run)],
            benchmark=run.fix != "no_benchmark",
        )  # fmt: skip
        trainer.fit(Recognizer(channels, width, layers).train(), loader)


if __name__ == "__main__":
    main(train)
