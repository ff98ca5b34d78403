"""Needs a GPU: how close `gpuprof fit` comes to the memory of other batches, and to the largest batch that runs.

    python -m benchmarks.largest_batch train.py --lr 1e-4
    python -m benchmarks.largest_batch --share 0.3 --peak --json FILE -m package.module

Prints the peak of a larger batch, predicted and measured (goal: within 5 %), then the advised batch, the largest one
that ran (found by halving the interval, a few processes), and their ratio. The goal: no advised batch runs out of
memory, and the ratio is 0.85 or more. --peak leaves out the largest batch. --share: the program may take that share of
the GPU's memory, so that several can be measured at the same time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpuprof.calibration import memory as memory_calibrated
from gpuprof.cli.shared.output import say
from gpuprof.cli.try_ import target_of
from gpuprof.costs.hardware import find
from gpuprof.errors import GpuprofError
from gpuprof.projection.memory.recorded_memory import usable_bytes
from gpuprof.trial.fit import MeasuredPeaks, Model, measure, model_of, probed
from gpuprof.trial.starter import Starter

LIMITED = str(Path(__file__).with_name("memory_share.py"))
GOAL = 0.85
"""The advised batch should be at least this share of the largest batch that runs."""
NEAR = 0.04
"""The interval of the largest batch is halved until it is no wider than this share of the batch."""
FACTOR = 4.0
"""The peak is measured with at most this many times the program's batch."""
MARGIN = 0.9
"""The peak is measured with at most this share of the advised batch."""


def largest(first: int, runs: Callable[[int], bool]) -> int:
    """The largest batch that runs, within NEAR; `first` is one that does.

    The first batch tried after it is the one with which the goal would be missed.
    """
    low, high = first, int(first / GOAL) + 1
    while runs(high):
        low, high = high, 2 * high
    while high - low > max(NEAR * low, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if runs(middle) else (low, middle)
    return low


def room_bytes(found: MeasuredPeaks, share: float, room_gib: float | None) -> int:
    """Bytes that tensors may take of this share of the GPU's memory; `room_gib` if given. Raises GpuprofError if
    neither is known."""
    if room_gib is not None:
        return int(room_gib * 2**30)
    gpu = find(found.gpu["name"], found.gpu.get("memory_bytes")) if found.gpu else None
    if gpu is None or found.gpu is None or found.of != "gpu":
        raise GpuprofError("this needs a GPU that gpuprof knows")
    total = found.gpu.get("memory_bytes")
    # A share is of the allocator's memory: the context is not in it.
    return usable_bytes(
        gpu, total if share == 1 or total is None else int(share * total) + memory_calibrated.CONTEXT_BYTES.whole
    )


def peak(starter: Starter, model: Model, found: MeasuredPeaks, advised: int) -> dict[str, Any]:
    """The peak of another batch, predicted and measured: FACTOR times the program's, less if that is near the limit, or
    a smaller one if nothing larger fits."""
    first = found.points[0]
    taken = {one.batch for one in found.points}
    batch = int(min(FACTOR * first.batch, MARGIN * advised))
    if batch <= first.batch or batch in taken:
        batch = next((one for one in (batch - 1, batch + 1, first.batch - 1) if one > 0 and one not in taken), batch)
    say(f"the peak of batch {batch}")
    point = probed(starter, batch / first.batch)
    if point is None:
        return {"batch": batch, "why": "it did not run"}
    predicted = model.peak(point.batch, point.length)
    return {
        "batch": point.batch, "length": point.length, "measured_bytes": point.peak_bytes,
        "predicted_bytes": [int(one) for one in predicted], "error": predicted[1] / point.peak_bytes - 1,
    }  # fmt: skip


def measured(
    words: tuple[str, ...], module: str | None, share: float, room_gib: float | None, only_peak: bool
) -> Iterator[dict[str, Any]]:
    """What is known about one program, more with each item. Raises GpuprofError."""
    if share < 1:
        words, module = (LIMITED, str(share), *(("-m", module) if module else ()), *words), None
    with Starter(target_of(words, module, "largest_batch"), network=False, gpu_is_shared=share < 1) as starter:
        found = measure(starter, say)
        model, first = model_of(found.points), found.points[0]
        room = room_bytes(found, share, room_gib)
        advised = model.largest_batch(room, first.length)[0]
        answer: dict[str, Any] = {
            "points": [[one.batch, one.length, one.peak_bytes] for one in found.points], "changed": found.changed,
            "room_bytes": room, "advised": advised, "peak": peak(starter, model, found, advised),
        }  # fmt: skip
        yield answer
        if only_peak:
            return

        def runs(batch: int) -> bool:
            say(f"batch {batch}")
            return probed(starter, batch / first.batch) is not None

        fits = runs(advised)
        most = largest(advised if fits else first.batch, runs)
        yield answer | {"advised_runs": fits, "largest": most, "ratio": advised / most}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the GPU's memory, which the program may take")
    parser.add_argument("--room", type=float, metavar="GIB", help="what tensors may take, where no GPU says")
    parser.add_argument("--peak", action="store_true", help="leave out the largest batch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    parser.add_argument("-m", dest="module", help="run a module, as python -m does")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="TARGET")
    asked = parser.parse_args()
    if not asked.words and not asked.module:
        parser.error("which program?")
    try:
        for found in measured(tuple(asked.words), asked.module, asked.share, asked.room, asked.peak):
            if asked.json:
                asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(in_words(found), flush=True)
    except GpuprofError as error:
        print(f"largest_batch: {error}", file=sys.stderr)
        return 2
    return 0


def in_words(found: dict[str, Any]) -> str:
    """The last of what is known."""
    if "largest" in found:
        fits = "runs" if found["advised_runs"] else "OUT OF MEMORY"
        return f"advised {found['advised']} ({fits}), largest {found['largest']}, ratio {found['ratio']:.2f}"
    one = found["peak"]
    return f"peak of batch {one['batch']}: " + (one.get("why") or f"{one['error']:+.1%} of the measured peak")


if __name__ == "__main__":
    sys.exit(main())
