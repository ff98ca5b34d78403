"""LoRA on four layers of Llama 3.1 8B in bf16, batches of 8 texts that are tokenised as they are fetched.

Texts are made up, some 2500 tokens each; they are tokenised whole and cut to 512 tokens, so that nothing is padded.
The tokenizer is byte-pair encoding in plain Python.
"""

from __future__ import annotations

import itertools
import random
import re

import torch
from torch.utils.data import DataLoader, Dataset

from scenarios.support import data, models
from scenarios.support.loop import finetune, trained
from scenarios.support.run import Run, main

WORDS, TEXTS = 1000, 1024
"""Of a text, and texts."""
SPLIT = re.compile(r"\w+|[^\w\s]")
SYLLABLES = [first + second for first in "bcdfghjklmnprstvwz" for second in "aeiou"]


def texts(count: int, words: int) -> list[str]:
    """Made-up words of two to five syllables, with a comma here and there."""
    rng = random.Random(0)
    known = [
        "".join(rng.choices(SYLLABLES, k=rng.randint(2, 5))) + rng.choice(["", "", "", ","]) for _ in range(20_000)
    ]
    return [" ".join(rng.choices(known, k=words)) for _ in range(count)]


class Tokenizer:
    """Byte-pair encoding: of two neighbours in a word, those that merge first by rank become one, until none do."""

    def __init__(self, vocabulary: int) -> None:
        pairs = [tuple(syllable) for syllable in SYLLABLES]
        pairs += random.Random(1).sample(list(itertools.product(SYLLABLES, SYLLABLES)), 6000)
        self.ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self.vocabulary = vocabulary

    def __call__(self, text: str) -> list[int]:
        return [self.number(piece) for word in SPLIT.findall(text.lower()) for piece in self.pieces(word)]

    def pieces(self, word: str) -> list[str]:
        pieces, never = list(word), len(self.ranks)
        while len(pieces) > 1:
            ranks = [self.ranks.get(pair, never) for pair in itertools.pairwise(pieces)]
            best = min(ranks)
            if best == never:
                break
            at = ranks.index(best)
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return pieces

    def number(self, piece: str) -> int:
        """The same in every process, which hash() is not."""
        value = 0
        for letter in piece:
            value = value * 31 + ord(letter)
        return 1 + value % (self.vocabulary - 1)


class Tokenised(Dataset):
    """Texts, tokenised whole and cut when they are asked for."""

    def __init__(self, texts: list[str], tokenizer: Tokenizer, length: int) -> None:
        self.texts, self.tokenizer, self.length = texts, tokenizer, length

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> data.Batch:
        tokens = torch.tensor(self.tokenizer(self.texts[index])[: self.length])
        return {"input_ids": tokens, "labels": tokens.clone()}


def train(run: Run) -> None:
    model = models.lora(models.build("llama-3.1-8b", run.device, tiny=run.tiny, num_hidden_layers=4))
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4)
    samples = Tokenised(
        texts(run.pick(TEXTS, 64), run.pick(WORDS, 32)), Tokenizer(model.config.vocab_size), run.pick(512, 32)
    )
    options = {}
    if run.fix == "workers":
        options = {"num_workers": run.pick(8, 2), "pin_memory": not run.tiny, "persistent_workers": True}
    finetune(run, model, data.endless(DataLoader(samples, batch_size=8, **options)), optimizer)


if __name__ == "__main__":
    main(train)
