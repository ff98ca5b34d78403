"""Needs a GPU: how near the largest batch that `gpuprof fit` advises comes to the largest one that runs.

    python -m benchmarks.largest_batch TARGET…          # such as: train.py --lr 1e-4

Prints one line: the advised batch, the largest one that ran (found by halving the interval, a few processes), and their
ratio. The goal: none that is advised runs out of memory, and the ratio is 0.85 or more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from gpuprof.cli.output import say
from gpuprof.cli.try_ import target_of
from gpuprof.costs.hardware import find
from gpuprof.errors import GpuprofError
from gpuprof.projection.memory import usable_bytes
from gpuprof.trial.fit import measure, model_of, runs_with
from gpuprof.trial.processes import Starter

GOAL = 0.85
"""Of the largest batch that runs: what is advised should be no less."""
NEAR = 0.04
"""Of the batch: the interval is halved until it is no wider."""


def largest(first: int, runs: Callable[[int], bool]) -> int:
    """The largest batch that runs, within NEAR; `first` is one that does.

    What is asked first after it is the batch with which the goal would be missed.
    """
    low, high = first, int(first / GOAL) + 1
    while runs(high):
        low, high = high, 2 * high
    while high - low > max(NEAR * low, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if runs(middle) else (low, middle)
    return low


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    with Starter(target_of(tuple(sys.argv[1:]), None, "largest_batch"), network=False) as starter:
        found = measure(starter, say)
        gpu = find(found.gpu["name"], found.gpu.get("memory_bytes")) if found.gpu else None
        if gpu is None or found.of != "gpu":
            raise GpuprofError("this needs a GPU that gpuprof knows")
        first = found.points[0]
        room = usable_bytes(gpu, found.gpu.get("memory_bytes") if found.gpu else None)
        advised = model_of(found.points).largest_batch(room, first.length)[0]

        def runs(batch: int) -> bool:
            say(f"batch {batch}")
            return runs_with(starter, batch / first.batch)

        fits = runs(advised)
        most = largest(advised if fits else first.batch, runs)
    print(f"advised {advised} ({'runs' if fits else 'OUT OF MEMORY'}), largest {most}, ratio {advised / most:.2f}")


if __name__ == "__main__":
    main()
