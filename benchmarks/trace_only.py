"""How accurate the estimate of the unprofiled step is with nothing but a trace file.

    python -m benchmarks.trace_only [--shared FOLDER] [--only NAME]

A run of `gpuprof trace` contains steps that it timed before it recorded; with torch.profiler there is only the trace.
So each recording of a process with one GPU is diagnosed without what the run knows.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gpuprof
from benchmarks.accuracy import MS, ROOT, Case, Result, cases, error, run, unprofiled_ms
from gpuprof.diagnosis.diagnose import diagnose
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.tracefile.read import read_trace
from scenarios import catalogue

RUNS = ROOT / "tests" / "data" / "runs"
VARIED = ("trl_sft", "unsloth_qlora")
"""Runs in RUNS whose steps have texts of different lengths."""
TRACE = "trace.rank0.json.gz"
LEFT_OUT = "inner_ops_left_out"
"""What gpuprof says of recordings that were cut by tests/data/cut_run.py without --whole."""


@dataclass(frozen=True)
class Alone:
    """A recording, what its trace file alone says, and what was measured."""

    name: str
    diagnosis: Diagnosis
    measured_ms: tuple[float, float]
    by_run: bool
    """Measured by the run itself before it recorded, at the work of the recorded steps: where steps differ, what other
    processes took for theirs says nothing of these. Else by other processes."""
    bare: bool = False
    """Whether the recording is a bare trace, not part of a run."""

    @property
    def recorded_ms(self) -> float:
        assert self.diagnosis.steps is not None
        return self.diagnosis.steps.recorded_ns / MS

    @property
    def estimated_ms(self) -> float:
        assert self.diagnosis.steps is not None and self.diagnosis.steps.estimated_ns is not None
        return self.diagnosis.steps.estimated_ns / MS

    @property
    def interval_ms(self) -> tuple[float, float]:
        """The 80 % interval that is truth."""
        return unprofiled_ms(self.diagnosis)

    @property
    def error(self) -> float:
        """Of the estimate, signed, from the nearer end of what was measured; 0 inside."""
        return error(self.estimated_ms, self.measured_ms)

    @property
    def side(self) -> int:
        """1 where the whole interval lies above what was measured, -1 where below, 0 where they meet."""
        (low, high), (least, most) = self.interval_ms, self.measured_ms
        return 1 if low > most else -1 if high < least else 0

    @property
    def width(self) -> float:
        low, high = self.interval_ms
        return high / low

    @property
    def left_out(self) -> bool:
        """Whether the file lacks ops that were recorded."""
        return any(issue.id == LEFT_OUT for issue in self.diagnosis.quality.issues)


def runs() -> Iterator[Case]:
    """The runs of RUNS: a step is the mean free or the middle synchronised one of each process that took turns."""
    for name, truth in json.loads((RUNS / "truth.json").read_text())["programs"].items():
        ms = [
            p[kind][key] for p in truth["interleaved"] for kind, key in (("free", "mean_of_stage"), ("sync", "median"))
        ]
        yield Case(name, RUNS / name, (min(ms), max(ms)), None, run=True, steps_differ=name in VARIED)


def alone(case: Case, whole: Diagnosis | None = None) -> Alone:
    """A run's recording without the run; `whole`: what the run says, where that is known."""
    diagnosis = diagnose(whole.tables.timeline.trace if whole else read_trace(case.path / TRACE))
    measured = case.unprofiled_ms
    if case.steps_differ:
        measured = unprofiled_ms(whole or gpuprof.diagnose(case.path))
    assert measured is not None
    return Alone(case.name, diagnosis, measured, case.steps_differ)


def of_one_gpu(case: Case) -> bool:
    return case.run and (case.path.is_relative_to(RUNS) or catalogue.scenario(case.name).gpus == 1)


def plans(whole: Diagnosis) -> bool:
    """Whether the run's usual step is one without new shapes, for which recorded steps may plan: a trace alone does not
    say which of its steps are usual."""
    found = whole.budget
    return found is not None and any(one.cause == "new_shapes" for one in (*found.excess, *found.once))


def of_trace(result: Result) -> Alone:
    """A recording that is not part of a run: its result is what the trace alone says."""
    assert result.case.unprofiled_ms is not None
    return Alone(result.case.name, result.diagnosis, result.case.unprofiled_ms, by_run=False, bare=True)


def everything(results: Iterable[Result]) -> list[Alone]:
    """All that there are: the runs of these results and of RUNS, and the results that are of a trace alone anyway."""
    results = list(results)
    of_runs = [alone(r.case, r.diagnosis) for r in results if of_one_gpu(r.case) and not plans(r.diagnosis)]
    bare = [of_trace(r) for r in results if not r.case.run and r.case.unprofiled_ms is not None]
    return [*of_runs, *map(alone, runs()), *bare]


def summary(found: list[Alone]) -> Iterator[str]:
    """A line for all, one for those that are of runs: the cost of an event was fitted to many of the others."""
    for name, some in (("from the trace", found), ("of these, of runs", [one for one in found if not one.bare])):
        if not some:
            continue
        errors, widths, sides = ([getattr(one, key) for one in some] for key in ("error", "width", "side"))
        middle = statistics.median(abs(one.estimated_ms / math.prod(one.measured_ms) ** 0.5 - 1) for one in some)
        yield (
            f"{name:19}{len(some)} unprofiled steps: median {100 * statistics.median(map(abs, errors)):.1f} %, worst"
            f" {100 * max(map(abs, errors)):.1f} %, from the middle of what was measured {100 * middle:.1f} %;"
            f" the interval meets {100 * sides.count(0) / len(some):.0f} %, lies above for {sides.count(1)}, below for"
            f" {sides.count(-1)}; high/low {statistics.median(widths):.2f} at the median, {max(widths):.2f} at most"
        )


def row(one: Alone) -> str:
    low, high = one.interval_ms
    measured = "–".join(f"{ms:.4g}" for ms in one.measured_ms) + (" (run)" if one.by_run else "")
    said = ("above", "", "below")[1 - one.side]
    return (
        f"{one.name:28}{one.recorded_ms:9.1f}{one.estimated_ms:9.1f}  {low:7.1f}–{high:<8.1f}{measured:>20}"
        f"{100 * one.error:+6.0f} %  {one.width:.2f} {said}{'  ops left out' if one.left_out else ''}"
    )


def counts(case: Case, only: str) -> bool:
    return only in case.name and (of_one_gpu(case) or (not case.run and case.unprofiled_ms is not None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    chosen = [case for case in (*cases(args.shared), *runs()) if counts(case, args.only)]
    found = [alone(case) if case.run else of_trace(run(case)) for case in chosen]
    print("\n".join((*map(row, found), "", *summary(found))))


if __name__ == "__main__":
    main()
