"""A translation model whose LSTM decoder takes 128 steps over the wanted tokens and attends to 96 encoded states.

Batch 128, width 512, 16,000 words, float32 with TF32.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from scenarios.support.run import Run, main


class Decoder(torch.nn.Module):
    """Luong's: the LSTM reads words alone, and what it attends to goes into the logits."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(words, width)
        self.lstm = torch.nn.LSTM(width, width, batch_first=True)
        self.query = torch.nn.Linear(width, width, bias=False)
        self.mix = torch.nn.Linear(2 * width, width)
        self.head = torch.nn.Linear(width, words)

    def attend(self, states: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Logits of rows × steps × width."""
        weights = torch.softmax(self.query(states) @ memory.mT, -1)
        return self.head(torch.tanh(self.mix(torch.cat((states, weights @ memory), -1))))

    def forward(self, tokens: torch.Tensor, memory: torch.Tensor, how: str) -> torch.Tensor:
        """Logits of each step, rows × steps × words."""
        if how == "whole":
            states, _ = self.lstm(self.embed(tokens))
            return self.attend(states, memory)
        rows, steps = tokens.shape
        state = None
        logits = tokens.new_empty((rows, 0, self.head.out_features), dtype=torch.float32)
        if how == "preallocated":
            logits = tokens.new_zeros((rows, steps, self.head.out_features), dtype=torch.float32)
        listed = []
        for step in range(steps):
            hidden, state = self.lstm(self.embed(tokens[:, step : step + 1]), state)
            scores = self.attend(hidden, memory)
            if how == "listed":
                listed.append(scores)
            elif how == "preallocated":
                logits[:, step : step + 1] = scores
            else:
                logits = torch.cat((logits, scores), 1)
        return torch.cat(listed, 1) if listed else logits


def train(run: Run) -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    words, width, rows, steps, source = run.pick((16_000, 512, 128, 128, 96), (64, 16, 2, 6, 5))
    embed = torch.nn.Embedding(words, width)
    encoder = torch.nn.LSTM(width, width // 2, bidirectional=True, batch_first=True)
    decoder = Decoder(words, width)
    model = torch.nn.ModuleList((embed, encoder, decoder)).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=not run.tiny)
    sources = torch.randint(0, words, (rows, source), device=run.device)
    targets = torch.randint(0, words, (rows, steps + 1), device=run.device)
    for _ in run.steps():
        memory, _ = encoder(embed(sources))
        logits = decoder(targets[:, :-1], memory, run.fix)
        loss = cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
