"""Packed rows, 4 × 2048 tokens, whose collator writes a dense mask in float32, document by document.

A Llama of 8 layers, width 1024, in bf16; the loader has no workers.
"""

from __future__ import annotations

import random

import torch
from torch.utils.data import DataLoader, Dataset

from scenarios.support import models
from scenarios.support.run import Run, main


class Rows(Dataset):
    """Rows of tokens with the lengths of the documents in them."""

    def __init__(self, length: int, vocabulary: int, shortest: int, longest: int) -> None:
        rng = random.Random(0)
        self.rows = []
        for seed in range(64):
            lengths, rest = [], length
            while rest:
                lengths.append(min(rest, rng.randint(shortest, longest)))
                rest -= lengths[-1]
            tokens = torch.randint(1, vocabulary, (length,), generator=torch.Generator().manual_seed(seed))
            self.rows.append((tokens, lengths))

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, list[int]]:
        return self.rows[index % len(self.rows)]


class Collator:
    """Rows → tokens and what each may look at: a mask, or with `numbers` only which document each token is of."""

    def __init__(self, numbers: bool, kind: torch.dtype) -> None:
        self.numbers, self.kind = numbers, kind

    def __call__(self, rows: list[tuple[torch.Tensor, list[int]]]) -> dict[str, torch.Tensor]:
        tokens = torch.stack([row for row, _ in rows])
        if self.numbers:
            numbers = [torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)) for _, lengths in rows]
            return {"input_ids": tokens, "documents": torch.stack(numbers)}
        masks = torch.stack([self.mask(lengths) for _, lengths in rows])
        return {"input_ids": tokens, "attention_mask": masks[:, None]}

    def mask(self, lengths: list[int]) -> torch.Tensor:
        """Square: a token sees itself and those before it in its document."""
        allowed = torch.zeros(sum(lengths), sum(lengths), dtype=torch.bool)
        start = 0
        for length in lengths:
            allowed[start : start + length, start : start + length] = torch.ones(length, length).tril().bool()
            start += length
        if self.kind == torch.bool:
            return allowed
        return torch.zeros(allowed.shape, dtype=self.kind).masked_fill_(~allowed, torch.finfo(self.kind).min)


def same_document(documents: torch.Tensor) -> torch.Tensor:
    """The mask, made where the numbers of the documents are."""
    order = torch.arange(documents.shape[1], device=documents.device)
    return ((documents[:, :, None] == documents[:, None]) & (order[:, None] >= order))[:, None]


def train(run: Run) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16}
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, **shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    rows = Rows(run.pick(2048, 32), model.config.vocab_size, *run.pick((100, 700), (4, 12)))
    collator = Collator(run.fix == "on_gpu", torch.bool if run.fix == "bool" else torch.float32)
    workers = run.pick(6, 1) if run.fix == "workers" else 0
    loader = DataLoader(rows, run.pick(4, 2), collate_fn=collator, num_workers=workers, pin_memory=not run.tiny)
    for _, on_cpu in zip(run.steps(), loader, strict=False):
        inputs = {name: tensor.to(run.device, non_blocking=True) for name, tensor in on_cpu.items()}
        if "documents" in inputs:
            inputs["attention_mask"] = same_document(inputs.pop("documents"))
        if inputs["attention_mask"].is_floating_point():
            inputs["attention_mask"] = inputs["attention_mask"].to(model.dtype)
        loss = model(**inputs, labels=inputs["input_ids"]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
