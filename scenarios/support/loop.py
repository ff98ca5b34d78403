"""The plain training loop that most scenarios share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from scenarios.support.data import Batch
from scenarios.support.run import Run


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The trainable parameters."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def finetune(
    run: Run,
    model: torch.nn.Module,
    batches: Iterator[Batch],
    optimizer: torch.optim.Optimizer,
    after: Callable[[int, torch.Tensor], None] | None = None,
) -> None:
    """Forward, backward, optimizer. `after(step, loss)` runs at the end of each step."""
    for step in run.steps():
        batch = {name: tensor.to(run.device, non_blocking=True) for name, tensor in next(batches).items()}
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if after is not None:
            after(step, loss)
