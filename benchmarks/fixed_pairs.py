"""Whether a comparison names a fix first: recordings compared with twins that have the fix.

    python -m benchmarks.fixed_pairs [--only NAME]

Some programs were recorded both ways: pairs of traces of one model, and every scenario whose first fix was recorded.
Next to the difference of these is the one that was measured, in processes without a profiler.

For all others a twin is made: the fix is applied to the graph of the recorded step, the graph is simulated, and the
result is written as a recording, with work at its new times and without what the fix removes. Such a twin has the
kernels' old names, so fixes that replace kernels (compiled code, fused attention, TF32) cannot be detected in it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np

import gpuprof
from gpuprof.diagnosis import diagnose as diagnosing
from gpuprof.diagnosis.analysis import Analysis, Change, analysis_of
from gpuprof.diagnosis.comparison.compare import compare
from gpuprof.diagnosis.comparison.comparison import Comparison
from gpuprof.diagnosis.detect.declared.proposal import LEAST_GAIN
from gpuprof.diagnosis.findings import FINDINGS
from gpuprof.diagnosis.fixes.predicted_step import predict
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.replay.build.build import build
from gpuprof.replay.build.carried_in import carried_over
from gpuprof.replay.graph import Graph
from gpuprof.replay.simulate import Schedule, simulate
from gpuprof.replay.split_collectives import model_collectives
from gpuprof.tracefile.recording import resolve
from gpuprof.tracefile.trace import Calls, Mask, Ops, Trace
from scenarios.catalogue import Scenario, scenarios

ROOT = Path(__file__).parents[1]
UNDETECTABLE = ("compile", "cuda_graphs", "larger_batch", "tf32", "eager_attention")
"""Fixes that a twin does not show: kernels of other names, or another batch."""

Host = TypeVar("Host", Ops, Calls)


PAIRS = ROOT / "tests" / "data" / "pairs"
RECORDED_PAIRS = (
    ("tiny", "tiny.compile", "compile"),
    ("tiny", "tiny.graphs", "cuda_graphs"),
    ("tiny.compile", "tiny.graphs", "cuda_graphs"),
    ("checkpoint_tiny", "tiny", "recompute"),
)
"""One program traced without and with a change: before, after, and the finding that advises it."""


@dataclass(frozen=True)
class Recorded:
    """Two recordings of one program, the second with a fix."""

    name: str
    before: Path
    after: Path
    finding: str
    scenario: Scenario | None = None

    @property
    def measured_ms(self) -> float | None:
        """By how much the step differs, as it was timed without a profiler."""
        if self.scenario is None:
            return None
        fix = self.scenario.fixes[0]
        sides = self.scenario.values_ms(), self.scenario.values_ms(fix.name)
        return median(sides[1]) - median(sides[0]) if all(sides) else None


def recorded() -> Iterator[Recorded]:
    """All programs that were recorded both ways, except those whose fix gained nothing when measured."""
    for before, after, finding in RECORDED_PAIRS:
        yield Recorded(f"{before} → {after}", PAIRS / f"{before}.json.gz", PAIRS / f"{after}.json.gz", finding)
    for one in scenarios():
        if one.recording and one.fixed and one.fixes[0].finding and one.fixes[0].gains:
            yield Recorded(f"{one.name} → {one.fixes[0].name}", one.recording, one.fixed, one.fixes[0].finding, one)


@dataclass(frozen=True)
class Twin:
    """A recording and its twin."""

    name: str
    finding: str
    comparison: Comparison

    @property
    def first(self) -> str | None:
        return self.comparison.mechanisms[0].id if self.comparison.mechanisms else None

    @property
    def right(self) -> bool:
        return self.first == self.finding


def twins(path: Path) -> Iterator[Twin]:
    """A twin for every advised fix of a recording that depends on no other fix and can be detected."""
    trace = resolve(path).read().trace
    assert trace is not None
    diagnosis, case = diagnosed(trace)
    if case is None:
        return
    for page, find in FINDINGS:
        for proposal in find(case) if page.id not in UNDETECTABLE else ():
            if (
                proposal.work != 1.0
                or proposal.odds < 1
                or case.step_ns < LEAST_GAIN * predict(case, proposal).expected
            ):
                continue
            fixed = diagnosing.diagnose(with_change(case, proposal.change))
            yield Twin(path.name, page.id, compare(diagnosis, fixed))


def diagnosed(trace: Trace) -> tuple[Diagnosis, Analysis | None]:
    """A diagnosis, and the case that its findings were derived from; None where nothing could be replayed."""
    diagnosis = diagnosing.diagnose(trace)
    return diagnosis, analysis_of(diagnosis)


def with_change(case: Analysis, change: Change) -> Trace:
    """The recording as it would be with a change of its graph, under the same profiler."""
    trace = case.trace
    graph = model_collectives(carried_over(build(case.timeline)))
    changed = change(graph)
    schedule = simulate(changed)
    gone = (changed.duration_ns == 0) & (graph.duration_ns > 0)
    gpu, low = trace.gpu, case.timeline.window[0]
    nodes = np.flatnonzero(graph.on_gpu)
    rows = graph.gpu_row[nodes]
    start, end, kept = gpu.start_ns.copy(), gpu.end_ns.copy(), np.zeros(len(gpu), bool)
    start[rows] = np.round(schedule.start_ns[nodes]).astype(np.int64) + low
    end[rows] = np.maximum(np.round(schedule.end_ns[nodes]).astype(np.int64) + low, start[rows])
    kept[rows] = ~gone[nodes]
    work = replace(gpu, start_ns=start, end_ns=end).take(np.flatnonzero(kept))
    idle = np.isin(trace.calls.correlation, np.setdiff1d(gpu.correlation[~kept], work.correlation))
    calls = ~idle & ~_removed_calls(case, graph, changed, gone)
    return replace(
        trace,
        gpu=work,
        ops=_moved(trace.ops, graph, schedule, case, np.ones(len(trace.ops), bool)),
        calls=_moved(trace.calls, graph, schedule, case, calls),
        **{name: getattr(trace, name).take(np.empty(0, np.int64)) for name in ("frames", "syncs", "flows", "memory")},
    )


def _removed_calls(case: Analysis, graph: Graph, changed: Graph, gone: Mask) -> Mask:
    """Calls that have nothing left of their own time."""
    host = ~graph.on_gpu
    some, left = np.zeros(len(case.trace.calls) + 1, bool), np.zeros(len(case.trace.calls) + 1, bool)
    some[graph.call[host & gone]] = True
    left[graph.call[host & (changed.duration_ns > 0)]] = True
    return (some & ~left)[:-1]


def _moved(table: Host, graph: Graph, schedule: Schedule, case: Analysis, kept: Mask) -> Host:
    """Host events of the window at the times that their threads reach them; those that vanish left out."""
    low, high = case.timeline.window
    start, end = ((times - low).astype(np.float64) for times in (table.start_ns, table.end_ns))
    for thread in np.unique(table.thread).tolist():
        lane = np.flatnonzero(graph.lane == thread)
        lane = lane if len(lane) else np.flatnonzero(graph.lane == case.timeline.main_thread)
        before = np.concatenate([graph.recorded_start_ns[lane], graph.recorded_end_ns[lane]])
        after = np.concatenate([schedule.start_ns[lane], schedule.end_ns[lane]])
        order = np.lexsort((after, before))
        mine = table.thread == thread
        for times in (start, end):
            times[mine] = np.interp(times[mine], before[order], np.maximum.accumulate(after[order]))
    begun = np.round(start).astype(np.int64) + low
    ended = np.maximum(np.round(end).astype(np.int64) + low, begun)
    kept = kept & (table.start_ns >= low) & (table.start_ns < high)
    kept &= (ended > begun) | (table.end_ns <= table.start_ns)
    return replace(table, start_ns=begun, end_ns=ended).take(np.flatnonzero(kept))


def recordings() -> Iterator[Path]:
    """Those of the repository that have findings."""
    yield from sorted(PAIRS.glob("*.json.gz"))
    for folder in (ROOT / "scenarios", ROOT / "tests" / "data" / "runs"):
        yield from sorted(folder.glob("*/recording" if folder.name == "scenarios" else "*_*/"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    both = list(_shown(_recorded_twins(args.only)))
    print(f"{sum(both)} of {len(both)} fixes that were recorded come first\n", flush=True)
    made = list(_shown(_made_twins(args.only)))
    print(f"{sum(made)} of {len(made)} fixes that were replayed come first")


def _recorded_twins(only: str) -> Iterator[tuple[Twin, float | None]]:
    for one in recorded():
        if only in one.name:
            comparison = gpuprof.compare(one.before, one.after)
            yield Twin(one.name, one.finding, comparison), one.measured_ms


def _made_twins(only: str) -> Iterator[tuple[Twin, float | None]]:
    for path in recordings():
        if only in str(path):
            for twin in twins(path):
                yield replace(twin, name=str(path.relative_to(ROOT))), None


def _shown(found: Iterator[tuple[Twin, float | None]]) -> Iterator[bool]:
    """Whether each twin is right, which is printed too."""
    for twin, measured in found:
        c = twin.comparison
        named = ", ".join(f"{m.id} {m.difference_ns / 1e6:+.1f}" for m in c.mechanisms[:3])
        timed = f" (measured {measured:+.1f})" if measured is not None else ""
        mark = "" if twin.right else "  WRONG"
        difference = f"{c.step.difference_ns / 1e6:+8.1f} ms{timed}"
        print(f"{twin.name:45} {twin.finding:18} {difference}: {named}{mark}", flush=True)
        yield twin.right


if __name__ == "__main__":
    main()
