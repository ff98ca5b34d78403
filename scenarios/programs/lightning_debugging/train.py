"""A ViT (small: 12 layers, width 384) with Lightning, bf16 autocast, 64 images of 224 × 224, with what was switched on
when a loss had once become NaN.
"""

from __future__ import annotations

import tempfile

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch.utils.data import DataLoader, Dataset
from transformers import ViTConfig, ViTForImageClassification

from scenarios.support.run import Run, main

CLASSES, EVERY = 100, 50


class Images(Dataset):
    """Pictures that were loaded before, and their classes."""

    def __init__(self, size: int, count: int) -> None:
        self.pictures = torch.rand(count, 3, size, size)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pictures[index % len(self.pictures)], index % CLASSES


class Classifier(lightning.LightningModule):
    def __init__(self, config: ViTConfig, every: int, fused: bool) -> None:
        super().__init__()
        self.model, self.every, self.fused = ViTForImageClassification(config), every, fused

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        pictures, classes = batch
        loss = self.model(pixel_values=pictures, labels=classes).loss
        self.log("loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.global_step % self.every == 0:
            self.log_dict(grad_norm(self.model, norm_type=2))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-4, fused=False)


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
    size, batch = run.pick((224, 64), (32, 2))
    small = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 6}
    tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = ViTConfig(image_size=size, num_labels=CLASSES, **run.pick(small, tiny))
    model = Classifier(config, EVERY if run.fix in ("norms_seldom", "neither") else 1, not run.tiny).train()
    workers = run.pick(4, 0)
    loader = DataLoader(Images(size, 4 * batch), batch, num_workers=workers, pin_memory=not run.tiny)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu" if run.tiny else "gpu", devices=1, precision="bf16-mixed", max_steps=1_000_000,
            logger=CSVLogger(folder), log_every_n_steps=EVERY, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, gradient_clip_val=1.0, callbacks=[Clock(run)],
            detect_anomaly=run.fix not in ("no_anomaly", "neither"),
        )  # fmt: skip
        trainer.fit(model, loader)


if __name__ == "__main__":
    main(train)
