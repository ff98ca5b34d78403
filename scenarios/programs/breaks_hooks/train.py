"""A compiled model whose forward hooks note the size of each block's output as a Python number"""

from __future__ import annotations

from typing import Any

import torch

from scenarios.support.planted import Model, train_compiled
from scenarios.support.run import Run, main


class Watch:
    """The norm of the last output of each watched module: numbers on the CPU, or tensors that stay on the GPU."""

    def __init__(self, as_numbers: bool) -> None:
        self.as_numbers = as_numbers
        self.last: dict[str, Any] = {}

    def on(self, model: Model) -> None:
        for name, block in model.blocks.named_children():
            block.down.register_forward_hook(self._hook(name))

    def _hook(self, name: str):
        def note(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            norm = output.detach().float().norm()
            self.last[name] = norm.item() if self.as_numbers else norm

        return note


def train(run: Run) -> None:
    watch = Watch(as_numbers=run.fix != "removed")
    train_compiled(run, None, blocks=6, prepare=watch.on)


if __name__ == "__main__":
    main(train)
