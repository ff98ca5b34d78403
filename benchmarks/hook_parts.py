"""Which of gpuprof's functions account for the time that a step takes longer in the baseline.

    python -m benchmarks.hook_parts [--steps 1000] [--json FILE]

A training with nothing in it (benchmarks/timed_loop.py, `tiny`; on the GPU where there is one), first bare and then
within a `gpuprof.Recorder` whose baseline does not end, in one process: microseconds a step of both, the number of
Python functions of `gpuprof/record` that are called, and the microseconds of each under cProfile, which makes all of it
slower, what it calls of C and torch included.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import gpuprof
from benchmarks import timed_loop
from gpuprof.record.steps import bare_steps, tape

OURS = "gpuprof/record/"
SHOWN = 25
NEVER_NS = 1 << 62
SETTLED = 300
"""Steps until the baseline is under way."""


def microseconds(steps: Iterator[int], count: int, recorder: gpuprof.Recorder | None) -> list[float]:
    """Microseconds of each step, including the recorder's work at its end."""
    found = []
    for ns in (next(steps) for _ in range(count)):
        begun = time.perf_counter_ns()
        if recorder is not None:
            recorder.step()
        found.append((ns + time.perf_counter_ns() - begun) / 1e3)
    return found


def parts(profile: cProfile.Profile, steps: int) -> dict[str, float]:
    """Function of gpuprof → µs per step under the profiler, for itself and what it calls outside of gpuprof."""
    found: Counter[str] = Counter()
    stats: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, _, name), (_, _, own_s, _, callers) in stats.items():
        if OURS in file:
            found[f"{Path(file).name}:{name}"] += own_s
        else:
            for (calling, _, by), (_, _, _, within_s) in callers.items():
                if OURS in calling and name not in ("backward", "__next__", "fetch"):
                    found[f"{Path(calling).name}:{by} → {name}"] += within_s
    return {name: 1e6 * seconds / steps for name, seconds in found.most_common()}


def calls(profile: cProfile.Profile, steps: int) -> float:
    """Python functions of ours that a step calls."""
    stats: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    return sum(called for (file, _, _), (_, called, *_) in stats.items() if OURS in file) / steps


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps = timed_loop.steps("tiny", device)
    microseconds(steps, SETTLED, None)
    bare = statistics.median(microseconds(steps, asked.steps, None))
    profile = cProfile.Profile()
    with (
        tempfile.TemporaryDirectory() as folder,
        gpuprof.Recorder(f"{folder}/run", settle=10, baseline=1_000_000, sampling=False, trackers=False) as recorder,
    ):
        tape.WORKED_OUT_NS = bare_steps.WORKED_OUT_NS = NEVER_NS  # lines are made after the stage, as on a GPU
        microseconds(steps, SETTLED, recorder)
        traced = statistics.median(microseconds(steps, asked.steps, recorder))
        profile.enable()
        microseconds(steps, asked.steps, recorder)
        profile.disable()
    found = parts(profile, asked.steps)
    print(f"{device}: bare {bare:.1f} µs a step, in the baseline {traced:.1f} µs: {traced - bare:+.1f} µs")
    print(f"{calls(profile, asked.steps):.0f} functions of gpuprof are called in a step")
    for name, us in list(found.items())[:SHOWN]:
        print(f"{us:7.1f} µs  {name}")
    times = {"bare_us": bare, "traced_us": traced, "functions": calls(profile, asked.steps)}
    if asked.json:
        asked.json.write_text(json.dumps({**times, "parts_us": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
