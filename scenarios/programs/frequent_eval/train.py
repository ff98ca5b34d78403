"""A classifier (BERT, 8 layers, width 512) on 32 × 128 tokens, bf16 weights, validated every 20 steps."""

from __future__ import annotations

import contextlib

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

from scenarios.support.data import endless
from scenarios.support.run import Run, main


def texts(count: int, words: int, length: int) -> TensorDataset:
    """Random tokens and classes."""
    return TensorDataset(torch.randint(1, words, (count, length)), torch.randint(0, 4, (count,)))


def validate(model: torch.nn.Module, batches: DataLoader, device: str, fix: str) -> float:
    """The mean loss of the validation set."""
    model.eval()
    total, summed = 0.0, torch.zeros((), device=device)
    with torch.no_grad() if fix == "no_grad" else contextlib.nullcontext():
        for tokens, labels in batches:
            loss = model(input_ids=tokens.to(device), labels=labels.to(device)).loss * len(tokens)
            if fix == "read_once":
                summed += loss.detach()
            else:
                total += loss.item()
    model.train()
    return (total + float(summed)) / len(batches.dataset)


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, batch, length, held_out = run.pick((30_000, 32, 128, 96), (128, 2, 8, 6))
    shape = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 8}
    tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = BertForSequenceClassification(BertConfig(vocab_size=words, num_labels=4, **run.pick(shape, tiny)))
    model.to(run.device, torch.bfloat16).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=not run.tiny)
    batches = endless(DataLoader(texts(2048, words, length), batch, pin_memory=not run.tiny, drop_last=True))
    at_once = run.pick(32, 4) if run.fix == "batch_32" else 1
    validation = DataLoader(texts(held_out, words, length), at_once, generator=torch.Generator())
    every = run.pick(200, 4) if run.fix == "every_200" else run.pick(20, 2)
    best = float("inf")
    for step in run.steps():
        tokens, labels = (tensor.to(run.device, non_blocking=True) for tensor in next(batches))
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % every == every - 1:
            best = min(best, validate(model, validation, run.device, run.fix))


if __name__ == "__main__":
    main(train)
