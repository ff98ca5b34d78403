"""What recording cost each of the recordings whose step was also timed without a profiler.

    python -m benchmarks.profiler_cost [--shared FOLDER]

For each: how slowly its CPU recorded (`pace`); the cost of a recorded event, as a multiple of `profiler.EVENT_NS`, that
gives the measured step (a range, as the truth is one); and what the model uses. Steps limited by the GPU say nothing
about it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.accuracy import MS, ROOT, cases
from gpuprof.calibration import profiler as profiler_calibrated
from gpuprof.replay.build.build import build
from gpuprof.replay.build.carried_in import carried_over
from gpuprof.replay.simulate import ROUNDS, simulate
from gpuprof.replay.split_collectives import model_collectives
from gpuprof.replay.unprofiled.host_pace import host_pace
from gpuprof.replay.unprofiled.profiler_cost import recorded_events, without
from gpuprof.timeline.timeline import build_timeline
from gpuprof.tracefile.recording import resolve

SCALES = np.arange(0, 4.01, 0.1)
INFORMATIVE = 0.05
"""A step that shrinks by less than this share at a whole `profiler.EVENT_NS` per event is limited by something else."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    args = parser.parse_args()
    cost = f"  cost that gives the measured step, × {profiler_calibrated.EVENT_NS.value:g} ns"
    print(f"{'recording':28}{'events':>8}{'pace':>6}{cost}")
    for case in cases(args.shared):
        if case.unprofiled_ms is None:
            continue
        trace = resolve(str(case.path)).read().trace
        assert trace is not None
        timeline = build_timeline(trace)
        assert timeline is not None
        graph = model_collectives(carried_over(build(timeline)))
        events = recorded_events(graph)
        steps = [simulate(without(graph, events.cost_ns(s)), ROUNDS).step_ns / MS for s in SCALES]
        count = round(float((events.ops + events.calls).sum()) / graph.steps)
        print(f"{case.name:28}{count:8,}{host_pace(timeline):6.2f}  {_fitting_cost(steps, case.unprofiled_ms)}")


def _fitting_cost(steps: list[float], truth: tuple[float, float]) -> str:
    if steps[0] - steps[10] < INFORMATIVE * steps[0]:
        return "–"
    falling = np.minimum.accumulate(steps)[::-1]
    low, high = (float(np.interp(ms, falling, SCALES[::-1])) for ms in reversed(truth))
    return f"{low:.2f} to {high:.2f}"


if __name__ == "__main__":
    main()
