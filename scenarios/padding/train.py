"""LoRA on six layers of Llama 3.1 8B in bf16, 16 samples a batch, padded to the longest and on to a multiple of 8.

64 samples with lengths as Alpaca's have, 123 tokens on average, again and again: 4 batches that are 362 tokens wide on
average. Batches of like length are as if 1024 samples had been put in order. Packed, samples follow one another in
rows of 360 tokens, cut where a row is full, and attention does not separate them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch

from scenarios.support import data, lengths, models
from scenarios.support.loop import finetune, trained
from scenarios.support.run import Run, main

BATCH, SAMPLES, POOL = 16, 64, 1024
"""Of a step, of the four batches that come again and again, and of the data set that they are from."""
ROW = 360


def packed(samples: Iterable[data.Batch], row: int) -> list[data.Batch]:
    """Batches of full rows; what fills no batch is left out."""
    stream = {name: torch.cat(tensors) for name, tensors in columns(samples).items()}
    count = len(stream["input_ids"]) // (BATCH * row)
    chunks = {name: tokens[: count * BATCH * row].view(count, BATCH, row) for name, tokens in stream.items()}
    return [{name: rows[i] for name, rows in chunks.items()} for i in range(count)]


def columns(samples: Iterable[data.Batch]) -> dict[str, list[torch.Tensor]]:
    columns: dict[str, list[torch.Tensor]] = {}
    for sample in samples:
        for name, tokens in sample.items():
            columns.setdefault(name, []).append(tokens)
    return columns


def of_like_length(drawn: list[int]) -> list[int]:
    """Four batches from evenly within the pool in the order of its lengths, the longest first."""
    ordered = sorted(drawn, reverse=True)
    apart = POOL // (SAMPLES // BATCH)
    return [length for start in range(apart // 2, POOL, apart) for length in ordered[start : start + BATCH]]


def counted(run: Run, batches: Iterator[data.Batch]) -> Iterator[data.Batch]:
    """The batches, while the run receives how many of their tokens are no padding."""
    for batch in batches:
        run.tokens(int(batch["attention_mask"].sum()))
        yield batch


def train(run: Run) -> None:
    model = models.lora(models.build("llama-3.1-8b", run.device, tiny=run.tiny, num_hidden_layers=6))
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4)
    drawn = [length // run.pick(1, 8) for length in lengths.draw("alpaca", POOL)]
    vocabulary = model.config.vocab_size
    if run.fix == "packing":
        samples = data.Samples(drawn, vocabulary)
        batches = packed((samples[i % SAMPLES] for i in range(4 * SAMPLES)), run.pick(ROW, 40))
    else:
        drawn = of_like_length(drawn) if run.fix == "grouped" else drawn[:SAMPLES]
        batches = data.loader(drawn, vocabulary, BATCH, collate_fn=partial(data.padded, multiple=8))
    finetune(run, model, counted(run, data.endless(batches)), optimizer)


if __name__ == "__main__":
    main(train)
