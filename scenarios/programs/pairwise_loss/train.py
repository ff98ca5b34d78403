"""A sentence encoder (BERT, 12 layers, width 384) on 24 pairs of 64 tokens, bf16 weights.

The loss wants a pair's sentences alike, and each sentence unlike the others' by a margin.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cosine_similarity, normalize, relu
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertModel

from scenarios.support.data import endless
from scenarios.support.run import Run, main

MARGIN = 0.3


def of_pairs(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    total = first.new_zeros(())
    for i in range(len(first)):
        for j in range(len(second)):
            alike = cosine_similarity(first[i], second[j], dim=0)
            total = total + (1.0 - alike if i == j else relu(alike - MARGIN))
    return total / len(first)


def of_rows(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    total = first.new_zeros(())
    for i in range(len(first)):
        alike = cosine_similarity(first[i : i + 1], second, dim=1)
        others = relu(torch.cat((alike[:i], alike[i + 1 :])) - MARGIN)
        total = total + (1.0 - alike[i]) + others.sum()
    return total / len(first)


def of_matrix(alike: torch.Tensor) -> torch.Tensor:
    """The loss of the similarities of all pairs, first × second."""
    own = torch.eye(len(alike), device=alike.device, dtype=torch.bool)
    return torch.where(own, 1.0 - alike, relu(alike - MARGIN)).sum() / len(alike)


def loss_of(first: torch.Tensor, second: torch.Tensor, how: str) -> torch.Tensor:
    if how == "matmul":
        return of_matrix(normalize(first, dim=1) @ normalize(second, dim=1).mT)
    if how == "broadcast":
        return of_matrix(cosine_similarity(first[:, None], second[None], dim=2))
    return of_rows(first, second) if how == "rows" else of_pairs(first, second)


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, pairs, length = run.pick((30_000, 24, 64), (128, 4, 8))
    shape = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 12}
    tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = BertModel(BertConfig(vocab_size=words, **run.pick(shape, tiny)), add_pooling_layer=False)
    model.to(run.device, torch.bfloat16).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=not run.tiny)
    sentences = TensorDataset(*(torch.randint(1, words, (1920, length)) for _ in range(2)))
    pinned = run.fix == "pinned" and not run.tiny
    batches = endless(DataLoader(sentences, pairs, drop_last=True, pin_memory=pinned))
    for _ in run.steps():
        tokens = torch.cat(next(batches)).to(run.device, non_blocking=pinned)
        states = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state
        first, second = states.float().mean(1).chunk(2)
        loss = loss_of(first, second, run.fix)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
