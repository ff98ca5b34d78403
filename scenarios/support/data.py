"""Random samples of given lengths, and batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD, IGNORED = 0, -100
Batch = dict[str, torch.Tensor]


class Samples(Dataset):
    """Samples of random tokens with given lengths; all tokens count in the loss."""

    def __init__(self, lengths: Sequence[int], vocabulary: int) -> None:
        self.lengths, self.vocabulary = lengths, vocabulary

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Batch:
        rng = torch.Generator().manual_seed(index)
        tokens = torch.randint(PAD + 1, self.vocabulary, (self.lengths[index],), generator=rng)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}


def padded(samples: list[Batch], multiple: int = 1) -> Batch:
    """A batch, padded to its longest sample, rounded up to a multiple."""
    filling = {"input_ids": PAD, "attention_mask": 0, "labels": IGNORED}
    longest = max(len(sample["input_ids"]) for sample in samples)
    rest = -longest % multiple
    batch = {}
    for name, value in filling.items():
        rows = pad_sequence([sample[name] for sample in samples], batch_first=True, padding_value=value)
        batch[name] = torch.nn.functional.pad(rows, (0, rest), value=value)
    return batch


def loader(lengths: Sequence[int], vocabulary: int, batch: int, **options) -> DataLoader:
    """Batches of samples in order; `options` go to the DataLoader."""
    options = {"collate_fn": padded, "drop_last": True} | options
    return DataLoader(Samples(lengths, vocabulary), batch_size=batch, **options)


def endless(batches: DataLoader) -> Iterator[Batch]:
    """The batches again and again."""
    while True:
        yield from batches


def full(vocabulary: int, batch: int, length: int, device: str) -> Batch:
    """One batch without padding, on the device, for programs in which the input does not matter."""
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randint(PAD + 1, vocabulary, (batch, length), generator=rng).to(device)
    return {"input_ids": tokens, "labels": tokens.clone()}
