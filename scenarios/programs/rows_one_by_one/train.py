"""A transformer over the columns of a table (3 layers, width 128, 48 numbers a row) with Lightning, bf16 autocast, 4096
rows a batch. The table is a TensorDataset with a DataLoader that was given nothing but a batch size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import lightning
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from scenarios.support.run import Run, main

CLASSES = 10
Batch = tuple[torch.Tensor, torch.Tensor]


class Network(nn.Module):
    """Each number of a row becomes a token; a token of its own gathers what the class is read from."""

    def __init__(self, columns: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(0.1 * torch.randn(columns, width)) for _ in range(2))
        self.gathers = nn.Parameter(torch.zeros(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        tokens = numbers[:, :, None] * self.weight + self.bias
        tokens = torch.cat((self.gathers.expand(len(tokens), -1, -1), tokens), 1)
        return self.head(self.body(tokens)[:, 0])


class Classifier(lightning.LightningModule):
    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        numbers, classes = batch
        loss = functional.cross_entropy(self.network(numbers), classes)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4, weight_decay=1e-5)


class OnGpu:
    """Batches of a table that is on the device, in a new order each epoch."""

    def __init__(self, table: TensorDataset, batch: int, device: str) -> None:
        self.numbers, self.classes = (tensor.to(device) for tensor in table.tensors)
        self.batch = batch

    def __len__(self) -> int:
        return len(self.numbers) // self.batch

    def __iter__(self) -> Iterator[Batch]:
        order = torch.randperm(len(self.numbers), device=self.numbers.device)
        for rows in order[: len(self) * self.batch].split(self.batch):
            yield self.numbers[rows], self.classes[rows]


class Clock(lightning.Callback):
    """Ends each step of the run."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        self.run.end_step(trainer.global_step - 1)
        trainer.should_stop |= trainer.global_step >= self.run.count

    def on_train_end(self, *_: object) -> None:
        self.run.end()


def batches(run: Run, table: TensorDataset, batch: int) -> DataLoader | OnGpu:
    if run.fix == "on_gpu":
        return OnGpu(table, batch, run.device)
    if run.fix == "whole_batches":  # the table is indexed once per batch, and nothing is left to collate
        sampler = BatchSampler(RandomSampler(table), batch, drop_last=True)
        return DataLoader(table, sampler=sampler, batch_size=None, pin_memory=not run.tiny)
    if run.fix == "workers":
        return DataLoader(
            table, batch, shuffle=True, drop_last=True, num_workers=run.pick(8, 0), pin_memory=not run.tiny,
            persistent_workers=not run.tiny,
        )  # fmt: skip
    return DataLoader(table, batch, shuffle=True, drop_last=True)


def train(run: Run) -> None:
    torch.manual_seed(0)
    rows, columns, batch = run.pick((2_000_000, 48, 4096), (256, 6, 8))
    width, layers, heads = run.pick((128, 3, 8), (8, 2, 2))
    table = TensorDataset(torch.randn(rows, columns), torch.randint(0, CLASSES, (rows,)))
    model = Classifier(Network(columns, width, layers, heads)).train()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            default_root_dir=folder, accelerator="cpu" if run.tiny else "gpu", devices=1, precision="bf16-mixed",
            max_steps=1_000_000, logger=False, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, callbacks=[Clock(run)],
        )  # fmt: skip
        trainer.fit(model, batches(run, table, batch))


if __name__ == "__main__":
    main(train)
