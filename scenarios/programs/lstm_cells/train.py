"""A speech tagger: two layers of LSTM cells (width 512) that a Python loop runs over 200 frames, batch 64, float32."""

from __future__ import annotations

import torch
from torch.nn import functional

from scenarios.support.run import Run, main


class Tagger(torch.nn.Module):
    """Frames → a class of each. `whole`: each layer is one call of torch.nn.LSTM."""

    def __init__(self, inputs: int, width: int, classes: int, whole: bool) -> None:
        super().__init__()
        sizes = (inputs, width)
        if whole:
            self.layers = torch.nn.ModuleList(torch.nn.LSTM(size, width, batch_first=True) for size in sizes)
        else:
            self.layers = torch.nn.ModuleList(torch.nn.LSTMCell(size, width) for size in sizes)
        self.width, self.whole = width, whole
        self.head = torch.nn.Linear(width, classes)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        if self.whole:
            for layer in self.layers:
                frames, _ = layer(frames)
            return self.head(frames)
        states = [(frames.new_zeros(len(frames), self.width),) * 2 for _ in self.layers]
        seen = []
        for t in range(frames.shape[1]):
            x = frames[:, t]
            for i, cell in enumerate(self.layers):
                states[i] = cell(x, states[i])
                x = states[i][0]
            seen.append(self.head(x))
        return torch.stack(seen, 1)


def train(run: Run) -> None:
    torch.manual_seed(0)
    length, inputs, width = run.pick((200, 80, 512), (8, 8, 16))
    batch, classes = run.pick(64, 4) * (4 if run.fix == "batch_256" else 1), 40
    model = Tagger(inputs, width, classes, run.fix == "nn_lstm").to(run.device).train()
    frames = torch.randn(batch, length, inputs, device=run.device)
    labels = torch.randint(0, classes, (batch, length), device=run.device)
    tag = model
    if run.fix == "graphed" and not run.tiny:
        tag = torch.cuda.make_graphed_callables(model, (frames,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in run.steps():
        loss = functional.cross_entropy(tag(frames).flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
