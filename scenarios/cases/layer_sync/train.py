"""A model on packed rows whose attention reads the longest document from the GPU in each layer, as the call of
variable-length attention did."""

from __future__ import annotations

import torch

from scenarios.support.planted import Model
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    width, blocks, length = run.pick((768, 24, 1024), (64, 2, 8))
    lengths = torch.tensor([length // 2, length // 4, length // 4], device=run.device)
    known = int(lengths.max())

    def longest(x: torch.Tensor, number: int) -> torch.Tensor:
        bounds = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        most = bounds.diff().max().item() if run.fix != "after" else known
        return x / (1.0 + 1e-9 * most)

    model = Model(width, blocks, longest).to(run.device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=not run.tiny)
    tokens = torch.randint(0, 8192, (1, length), device=run.device)
    for _ in run.steps():
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
