"""A Llama of 4 layers, width 2048, vocabulary 49,152, 8 × 512 tokens, bf16; the loss smooths labels by 0.1."""

from __future__ import annotations

import itertools

import torch
from torch.nn import functional

from scenarios.support import data, models
from scenarios.support.run import Run, main

SMOOTHING = 0.1


def smoothed_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of tokens × classes; the target spreads SMOOTHING evenly over all classes."""
    classes = logits.shape[-1]
    target = functional.one_hot(labels, classes).float() * (1 - SMOOTHING) + SMOOTHING / classes
    return -(target * functional.log_softmax(logits.float(), dim=-1)).sum(-1).mean()


def scattered_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The same; the distribution is filled in place."""
    logs = functional.log_softmax(logits.float(), dim=-1)
    target = torch.full_like(logs, SMOOTHING / logits.shape[-1], requires_grad=False)
    target.scatter_(1, labels[:, None], 1 - SMOOTHING + SMOOTHING / logits.shape[-1])
    return -(target * logs).sum(-1).mean()


def chunked_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The same in eight chunks of the tokens."""
    chunks = zip(logits.chunk(8), labels.chunk(8), strict=True)
    return torch.stack([smoothed_loss(*chunk) * len(chunk[1]) for chunk in chunks]).sum() / len(labels)


def library_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.float(), labels, label_smoothing=SMOOTHING)


def train(run: Run) -> None:
    shape = {"num_hidden_layers": 4, "vocab_size": 49_152}
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, **shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=not run.tiny)
    batches = itertools.repeat(data.full(model.config.vocab_size, *run.pick((8, 512), (2, 16)), run.device))
    losses = {"label_smoothing": library_loss, "scattered": scattered_loss, "chunked": chunked_loss}
    criterion = losses.get(run.fix, smoothed_loss)
    if run.fix == "compiled_loss":
        criterion = torch.compile(smoothed_loss)
    for step in run.steps():
        tokens = next(batches)["input_ids"]
        logits = model(input_ids=tokens).logits
        loss = criterion(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main(train)
