"""transformers' Trainer with float32 weights and its defaults, logging each step; texts are tokenized in the
collator.
"""

from __future__ import annotations

import random
import tempfile

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from scenarios.support import models
from scenarios.support.run import Run, main

WORDS = [f"word{i}" for i in range(500)]


class Texts(Dataset):
    def __init__(self, words: int) -> None:
        rng = random.Random(0)
        self.texts = [" ".join(rng.choices(WORDS, k=words)) for _ in range(64)]

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> str:
        return self.texts[index % len(self.texts)]


class Collator:
    """Tokenizes texts one after another, three times over: with lower case, for lengths, and for good."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="word0"))
        self.tokenizer.pre_tokenizer = Whitespace()

    def __call__(self, texts: list[str]) -> dict[str, torch.Tensor]:
        lowered = [self.tokenizer.encode(text.lower()).ids for text in texts]
        longest = max(len(self.tokenizer.encode(text).ids) for text in texts)
        rows = torch.zeros(len(texts), longest, dtype=torch.long)
        for row, ids in zip(rows, lowered, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        return {"input_ids": rows, "labels": rows.clone()}


def train(run: Run) -> None:
    shape = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 12}
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, dtype=torch.float32, **shape)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=100_000, per_device_train_batch_size=run.pick(8, 2), logging_steps=1, report_to="none",
            save_strategy="no", disable_tqdm=True, bf16=run.fix in ("bf16", "bf16_workers"), use_cpu=run.tiny,
            dataloader_num_workers=run.pick(6, 1) if run.fix in ("workers", "bf16_workers") else 0,
            tf32=True if run.fix == "tf32" and not run.tiny else None, remove_unused_columns=False,
        )  # fmt: skip
        texts = Texts(run.pick(512, 16))
        Trainer(model, arguments, train_dataset=texts, data_collator=Collator(), callbacks=[run.callback()]).train()


if __name__ == "__main__":
    main(train)
