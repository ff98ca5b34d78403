"""CPU time of the same work alone, and after the eager passes of a small model, whose code takes the caches from it.

    python -m benchmarks.warm_caches [--blocks 1,2,4,8] [--turns 180]

The work is what CUDA graphs leave of a step: autograd hands 99 gradients to their tensors, an optimizer steps, and the
gradients are released. The model's passes stand for the launches of a step without graphs; its tensors are tiny, so
that their data takes no cache. Alone, the work runs twice in a row and the second run counts. Each number is the lower
quartile, since other processes only make it larger; `compile.WARM` is the ratio, less what a step's other work evicts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from scenarios.support.planted import Model

TENSORS, WIDTH, TOKENS = 99, 64, 4
"""Parameters of the work, and the size of the model's hidden states."""


class Gradients(torch.autograd.Function):
    """A function of many tensors whose gradients are ready, as those of a compiled graph are."""

    @staticmethod
    def forward(ctx, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return tensors[0].sum()

    @staticmethod
    def backward(ctx, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ones_like(one) for one in ctx.saved_tensors)


def left_of_a_step() -> Callable[[], None]:
    """What CUDA graphs leave of a step."""
    tensors = [torch.nn.Parameter(torch.randn(WIDTH)) for _ in range(TENSORS)]
    optimizer = torch.optim.AdamW(tensors, lr=1e-4, fused=True)

    def work() -> None:
        loss = Gradients.apply(*tensors)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return work


def passes(blocks: int) -> Callable[[], None]:
    """Eager forward and backward passes."""
    model = Model(WIDTH, blocks, None)
    model.embed, model.head = torch.nn.Embedding(16, WIDTH), torch.nn.Linear(WIDTH, 16)
    tokens = torch.randint(0, 16, (1, TOKENS))

    def work() -> None:
        logits = model(tokens)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        model.zero_grad(set_to_none=True)

    return work


def lower_quartile_ms(before: Callable[[], None], work: Callable[[], None], turns: int) -> float:
    """Time of `work` right after `before`, ms."""
    took = []
    for _ in range(turns):
        before()
        begun = time.perf_counter()
        work()
        took.append(time.perf_counter() - begun)
    return 1e3 * float(np.quantile(took, 0.25))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", default="1,2,4,8")
    parser.add_argument("--turns", type=int, default=180)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    work = left_of_a_step()
    for blocks in map(int, asked.blocks.split(",")):
        launching = passes(blocks)
        alone, after = (lower_quartile_ms(before, work, asked.turns) for before in (work, launching))
        print(f"{blocks} blocks: alone {alone:.2f} ms, after the passes {after:.2f} ms: {alone / after:.2f} times")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
