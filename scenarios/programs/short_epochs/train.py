"""A text classifier (12 layers, width 768) on a small set of texts: 12 steps an epoch, 32 × 128 tokens, bf16 autocast.

Eight workers tokenize; each loads the tokenizer when it starts.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, Dataset, RandomSampler, get_worker_info

from scenarios.support.run import Run, main

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def write_tokenizer(path: Path, words: int) -> None:
    """A tokenizer.json of single words."""
    vocabulary = {f"word{i}": i for i in range(words)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "word0"}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    document = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model} | empty
    path.write_text(json.dumps(document), encoding="utf-8")


class Texts(Dataset):
    """Texts of some words and their classes. `open` loads the tokenizer."""

    def __init__(self, path: Path, count: int, length: int, words: int) -> None:
        rng = random.Random(0)
        self.path, self.length = path, length
        self.texts = [" ".join(f"word{rng.randrange(words)}" for _ in range(length)) for _ in range(count)]
        self.classes = [rng.randrange(4) for _ in range(count)]
        self.tokenizer: Tokenizer | None = None

    def open(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(self.path))

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.tokenizer is None:
            self.open()
        return torch.tensor(self.tokenizer.encode(self.texts[index]).ids), self.classes[index]


def start_worker(_: int) -> None:
    get_worker_info().dataset.open()


class Classifier(torch.nn.Module):
    def __init__(self, words: int, width: int, length: int, layers: int) -> None:
        super().__init__()
        self.embed, self.places = torch.nn.Embedding(words, width), torch.nn.Embedding(length, width)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, width // 64 or 1, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = torch.nn.Linear(width, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, width, batch, length, layers = run.pick((200_000, 768, 32, 128, 12), (500, 32, 2, 8, 2))
    workers = run.pick(2 if run.fix == "fewer" else 8, 1 if run.fix == "fewer" else 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        write_tokenizer(path, words)
        texts = Texts(path, run.pick(12, 2) * batch, length, words)
        if run.fix == "loaded_once":
            texts.open()
        loader = DataLoader(
            texts,
            batch,
            sampler=RandomSampler(texts, generator=torch.Generator().manual_seed(0)),
            num_workers=workers,
            multiprocessing_context="fork",
            worker_init_fn=None if run.fix == "loaded_once" else start_worker,
            persistent_workers=run.fix == "persistent",
            prefetch_factor=8 if run.fix == "prefetch" else 2,
            pin_memory=not run.tiny,
        )
        model = Classifier(words, width, length, layers).to(run.device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, fused=not run.tiny)
        steps = iter(run.steps())
        while True:  # an epoch
            for tokens, labels in loader:
                if next(steps, None) is None:
                    return
                tokens, labels = tokens.to(run.device, non_blocking=True), labels.to(run.device, non_blocking=True)
                with torch.autocast(run.device.split(":")[0], torch.bfloat16):
                    logits = model(tokens)
                loss = torch.nn.functional.cross_entropy(logits.float(), labels)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
