"""LoRA with transformers' Trainer and four micro-batches a step: it calls `model.train()` before each, which visits
every module of a model that PEFT wrapped. The Trainer and PEFT are the libraries' own code.
"""

from __future__ import annotations

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from scenarios.support import models
from scenarios.support.run import Run, main


class Tokens(Dataset):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.full((self.length,), 5 + index % 90)
        return {"input_ids": tokens, "labels": tokens}


def train(run: Run) -> None:
    model = models.lora(models.build("qwen2.5-0.5b", run.device, tiny=run.tiny, vocab_size=32_000))
    if run.fix == "after":
        walk = model.train

        def once(mode: bool = True) -> torch.nn.Module:
            return model if model.training == mode else walk(mode)

        model.train = once  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=100_000, per_device_train_batch_size=1, gradient_accumulation_steps=run.pick(4, 2),
            logging_steps=10, report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=run.tiny,
            bf16=not run.tiny,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=Tokens(run.pick(64, 8)), callbacks=[run.callback()]).train()


if __name__ == "__main__":
    main(train)
