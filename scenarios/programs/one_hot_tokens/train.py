"""A text classifier (6 layers, width 1024) that embeds tokens by a matrix multiplication of their one-hot vectors.

32 texts of 256 tokens from a vocabulary of 32,000; the encoder runs under bf16 autocast, the embedding before it.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from scenarios.support.run import Run, main


class Classifier(torch.nn.Module):
    """Embeds tokens, encodes them and classifies the mean. `lookup`: rows of the table are read, not multiplied."""

    def __init__(self, vocabulary: int, width: int, layers: int, classes: int, lookup: bool) -> None:
        super().__init__()
        self.vocabulary, self.lookup = vocabulary, lookup
        self.table = torch.nn.Parameter(torch.randn(vocabulary, width) * 0.02)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = torch.nn.Linear(width, classes)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.lookup:
            return functional.embedding(tokens, self.table)
        return functional.one_hot(tokens, self.vocabulary).float() @ self.table

    def forward(self, tokens: torch.Tensor, half_table: bool) -> torch.Tensor:
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=half_table):
            states = self.embed(tokens)
        with torch.autocast(tokens.device.type, torch.bfloat16):
            for layer in self.layers:
                states = layer(states)
            return self.head(states.mean(1))


def train(run: Run) -> None:
    if run.fix == "tf32":
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    vocabulary, width, layers = run.pick((32_000, 1024, 6), (512, 64, 2))
    texts, length, classes = *run.pick((32, 256), (2, 16)), 20
    model = Classifier(vocabulary, width, layers, classes, run.fix == "lookup").to(run.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    tokens = torch.randint(0, vocabulary, (texts, length), device=run.device)
    labels = torch.randint(0, classes, (texts,), device=run.device)
    for _ in run.steps():
        loss = functional.cross_entropy(model(tokens, run.fix == "autocast").float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
