"""A BERT-like classifier (6 layers, width 1024) in bf16 autocast, 48 texts a batch; the data set tokenizes them and
pads them to 512 tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification

from scenarios.support.data import endless
from scenarios.support.run import Run, main

WORDS = [f"word{i}" for i in range(1, 8000)]
POOL, GROUPED = 16_384, 16
"""Texts, and batches among which texts are put in order of length."""


class Reviews(Dataset):
    """Texts of some 40 words, few of more than 150, with one of five labels. `longest`: tokens that each is padded to;
    None: none is padded."""

    def __init__(self, longest: int | None, most: int) -> None:
        rng = random.Random(0)
        counts = [min(max(int(rng.lognormvariate(3.7, 0.6)), 4), most) for _ in range(POOL)]
        self.texts = [" ".join(rng.choices(WORDS, k=count)) for count in counts]
        self.labels = [rng.randrange(5) for _ in range(POOL)]
        vocabulary = {"[PAD]": 0} | {word: i for i, word in enumerate(WORDS, 1)}
        self.tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[PAD]"))
        self.tokenizer.pre_tokenizer = Whitespace()
        self.tokenizer.enable_truncation(most)
        if longest is not None:
            self.tokenizer.enable_padding(length=longest)

    def __len__(self) -> int:
        return POOL

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        encoded = self.tokenizer.encode(self.texts[index])
        return {
            "input_ids": torch.tensor(encoded.ids),
            "attention_mask": torch.tensor(encoded.attention_mask),
            "labels": torch.tensor(self.labels[index]),
        }


def padded_to_longest(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A batch, padded to its longest text, rounded up to a multiple of 8."""
    columns = {name: [sample[name] for sample in samples] for name in samples[0]}
    labels = torch.stack(columns.pop("labels"))
    rows = {name: torch.nn.utils.rnn.pad_sequence(column, batch_first=True) for name, column in columns.items()}
    rest = -rows["input_ids"].shape[1] % 8
    return {name: torch.nn.functional.pad(row, (0, rest)) for name, row in rows.items()} | {"labels": labels}


class OfLikeLength:
    """Batches of texts of like length: of GROUPED batches at a time, as transformers' Trainer groups them."""

    def __init__(self, texts: list[str], batch: int) -> None:
        self.words, self.batch = [text.count(" ") + 1 for text in texts], batch

    def __len__(self) -> int:
        return len(self.words) // self.batch

    def __iter__(self) -> Iterator[list[int]]:
        order = random.sample(range(len(self.words)), len(self) * self.batch)
        for start in range(0, len(order), GROUPED * self.batch):
            ordered = sorted(order[start : start + GROUPED * self.batch], key=lambda i: self.words[i])
            batches = [ordered[i : i + self.batch] for i in range(0, len(ordered), self.batch)]
            yield from random.sample(batches, len(batches))


def train(run: Run) -> None:
    torch.manual_seed(0)
    random.seed(0)
    batch, most = run.pick((48, 512), (4, 64))
    dynamic, grouped = run.fix in ("dynamic", "grouped", "all"), run.fix in ("grouped", "all")
    reviews = Reviews(None if dynamic else most, most)
    workers = run.pick(6, 1) if run.fix in ("workers", "all") else 0
    options = {"num_workers": workers, "persistent_workers": workers > 0, "pin_memory": not run.tiny}
    if dynamic:
        options["collate_fn"] = padded_to_longest
    if grouped:
        loader = DataLoader(reviews, batch_sampler=OfLikeLength(reviews.texts, batch), **options)
    else:
        loader = DataLoader(reviews, batch, shuffle=True, drop_last=True, **options)
    width, layers, heads = run.pick((1024, 6, 16), (32, 2, 2))
    dropout = run.pick(0.1, 0.0)
    config = BertConfig(
        vocab_size=len(WORDS) + 1, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width, num_labels=5, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    model = BertForSequenceClassification(config).to(run.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    batches = endless(loader)
    for _ in run.steps():
        inputs = next(batches)
        run.tokens(int(inputs["attention_mask"].sum()))
        inputs = {name: tensor.to(run.device, non_blocking=True) for name, tensor in inputs.items()}
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
