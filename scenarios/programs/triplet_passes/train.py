"""A text embedder (BERT, 12 layers, width 768) from triplets with accelerate, bf16, 24 triplets a batch, texts of 32
tokens, the mean of their tokens as embedding, and a triplet loss.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertModel

from scenarios.support.data import endless
from scenarios.support.run import Run, main

COLUMNS = ("anchor", "positive", "negative")


class Triplets(Dataset):
    """Texts that were tokenized before."""

    def __init__(self, words: int, length: int, count: int) -> None:
        self.tokens = torch.randint(1, words, (count, len(COLUMNS), length))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return dict(zip(COLUMNS, self.tokens[index], strict=True))


class Embedder(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.bert(input_ids=tokens).last_hidden_state
        return nn.functional.normalize(hidden.mean(1), dim=-1)


def embedded(model: nn.Module, batch: dict[str, torch.Tensor], at_once: bool) -> tuple[torch.Tensor, ...]:
    """The embeddings of anchors, positives and negatives."""
    texts = [batch[column] for column in COLUMNS]
    if at_once:
        return model(torch.cat(texts)).chunk(len(texts))
    return tuple(model(tokens) for tokens in texts)


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, length, batch = run.pick((30_000, 32, 24), (200, 8, 2))
    tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    accelerator = Accelerator(mixed_precision="bf16", cpu=run.tiny)
    model = Embedder(BertConfig(vocab_size=words, **run.pick({}, tiny))).train()
    if run.fix == "compile":
        model = torch.compile(model, backend=run.pick("inductor", "eager"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=run.fix == "one_pass_fused" and not run.tiny)
    loader = DataLoader(Triplets(words, length, 200 * batch), batch, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    batches = endless(loader)
    for _ in run.steps():
        anchors, positives, negatives = embedded(model, next(batches), run.fix.startswith("one_pass"))
        loss = nn.functional.triplet_margin_loss(anchors, positives, negatives, margin=0.3)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
