"""RoBERTa-base as a classifier of texts, with transformers' Trainer, bf16, 16 texts of 128 tokens; learning rates
fall from the last layer to the first.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict

import torch
from torch.utils.data import Dataset
from transformers import RobertaConfig, RobertaForSequenceClassification, Trainer, TrainingArguments

from scenarios.support.run import Run, main

RATE, DECAY, WEIGHT_DECAY = 2e-5, 0.9, 0.01
NOT_DECAYED = ("bias", "LayerNorm.weight")


class Texts(Dataset):
    """Texts that were tokenized before, and their classes."""

    def __init__(self, words: int, length: int, count: int) -> None:
        self.tokens = torch.randint(3, words, (count, length))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        index %= len(self.tokens)
        return {"input_ids": self.tokens[index], "labels": torch.tensor(index % 3)}


def rate(name: str, layers: int) -> float:
    """Learning rate of a parameter: the head's is the whole, and each layer below it has nine tenths of the next."""
    if name.startswith("classifier"):
        return RATE
    at = int(name.split("layer.")[1].split(".")[0]) if "layer." in name else -1
    return RATE * DECAY ** (layers - at)


def groups(model: torch.nn.Module, layers: int) -> list[dict]:
    """A group for each parameter, as in many notebooks."""
    return [
        {
            "params": [parameter],
            "lr": rate(name, layers),
            "weight_decay": 0.0 if name.endswith(NOT_DECAYED) else WEIGHT_DECAY,
        }
        for name, parameter in model.named_parameters()
    ]


def merged(single: list[dict]) -> list[dict]:
    """A group for all parameters of the same rate and weight decay."""
    alike = defaultdict(list)
    for group in single:
        alike[group["lr"], group["weight_decay"]] += group["params"]
    return [{"params": params, "lr": lr, "weight_decay": decay} for (lr, decay), params in alike.items()]


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, length, batch = run.pick((50_265, 128, 16), (301, 16, 2))
    tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = RobertaConfig(vocab_size=words, max_position_embeddings=514, num_labels=3, **run.pick({}, tiny))
    model = RobertaForSequenceClassification(config).to(run.device)
    parameters = groups(model, config.num_hidden_layers)
    if run.fix in ("merged", "merged_fused"):
        parameters = merged(parameters)
    optimizer = torch.optim.AdamW(parameters, fused=True if run.fix in ("fused", "merged_fused") else None)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=100_000, per_device_train_batch_size=batch, bf16=True, logging_steps=50,
            save_strategy="no", report_to="none", disable_tqdm=True, dataloader_num_workers=run.pick(2, 0),
            use_cpu=run.tiny,
        )  # fmt: skip
        Trainer(
            model, arguments, train_dataset=Texts(words, length, 256), optimizers=(optimizer, scheduler),
            callbacks=[run.callback()],
        ).train()  # fmt: skip


if __name__ == "__main__":
    main(train)
