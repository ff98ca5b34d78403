"""A ViT-B (12 layers, width 768) with Lightning, bf16 autocast, 48 images of 224 × 224, and an exponential average of
its weights that was put on the CPU when memory was short.
"""

from __future__ import annotations

import tempfile

import lightning
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch.optim.swa_utils import get_ema_avg_fn
from torch.utils.data import DataLoader, Dataset
from transformers import ViTConfig, ViTForImageClassification

from scenarios.support.run import Run, main

CLASSES = 200


class Images(Dataset):
    """Pictures that were loaded before, and their classes."""

    def __init__(self, size: int, count: int) -> None:
        self.pictures = torch.rand(count, 3, size, size)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pictures[index % len(self.pictures)], index % CLASSES


class Classifier(lightning.LightningModule):
    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.model = ViTForImageClassification(config)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        pictures, classes = batch
        loss = self.model(pixel_values=pictures, labels=classes).loss
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)  # Lightning clips no gradients of a fused one


class Average(WeightAveraging):
    """An exponential average, updated at every `every`th step."""

    def __init__(self, device: str | None, every: int) -> None:
        super().__init__(device=device, avg_fn=get_ema_avg_fn(0.999))
        self.every = every

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return step_idx is not None and step_idx % self.every == 0


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
    size, batch = run.pick((224, 48), (32, 2))
    tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = Classifier(ViTConfig(image_size=size, num_labels=CLASSES, **run.pick({}, tiny))).train()
    loader = DataLoader(
        Images(size, 4 * batch), batch, num_workers=run.pick(4, 0), pin_memory=not run.tiny, drop_last=True
    )
    average = Average(None if run.fix == "on_gpu" else "cpu", 20 if run.fix == "every_20" else 1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            default_root_dir=folder, accelerator="cpu" if run.tiny else "gpu", devices=1, precision="bf16-mixed",
            max_steps=1_000_000, logger=False, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, gradient_clip_val=1.0, callbacks=[average, Clock(run)],
        )  # fmt: skip
        trainer.fit(model, loader)


if __name__ == "__main__":
    main(train)
