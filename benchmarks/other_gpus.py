"""docs/other_gpus.md: recordings of an H200 projected to an H100, next to what was measured on one.

    python -m benchmarks.other_gpus [--out docs/other_gpus.md]

Steps: scenarios that were timed on both (scenarios/NAME/truth.json and h100.json: unprofiled, in fresh processes), and
the example's dense trainings, recorded on both. Kernels: those that both recordings of a training hold, by their name
and their grid.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import gpuprof
from gpuprof.costs.split import MEMORY
from gpuprof.diagnosis.projection_input.recorded_subject import subject_of
from gpuprof.projection.projected_step import ProjectedStep
from gpuprof.projection.question import question
from gpuprof.projection.subject import Subject
from gpuprof.projection.sustained_rates import reach
from scenarios import catalogue

ROOT = Path(__file__).resolve().parent.parent
H100 = "H100 SXM5 80GB"
EXAMPLE = ROOT / "examples" / "moe_on_h100_and_rtx_pro_6000" / "recordings"
TRAININGS = ("dense_ds1", "dense_ds2")
BANDS = (0.0, 0.4, 0.6, 0.8, 0.9, np.inf)
GUESSED = "not known"
LEAST_NS = 8_000
"""Shorter kernels, ns, are mostly latency."""


@dataclass(frozen=True)
class Step:
    """A step in milliseconds. `measured`: lowest and highest of the processes."""

    name: str
    bound: str
    here: float
    low: float
    projected: float
    high: float
    measured: tuple[float, float]

    @property
    def error(self) -> float:
        """0 within what was measured."""
        low, high = self.measured
        return self.projected / min(max(self.projected, low), high) - 1

    @property
    def meets(self) -> bool:
        return self.low <= self.measured[1] and self.measured[0] <= self.high


@dataclass(frozen=True)
class Kernels:
    """Some of the memory-bound kernels of one training."""

    training: str
    share: str
    """Share of the bandwidth that they reach."""
    ms: float
    measured: float
    """Their time there over here, mean by time."""
    projected: float
    off: float
    """Error of single kernels, mean by time."""


def steps() -> Iterator[Step]:
    for entry in catalogue.scenarios():
        path = entry.folder / "h100.json"
        if path.exists() and entry.recording is not None:
            values = entry.steps_ms(json.loads(path.read_text(encoding="utf-8"))["processes"])
            yield _step(entry.name, entry.recording, (values[0], values[-1]))
    for name in TRAININGS:
        there = diagnosed(EXAMPLE / "h100" / name)
        assert there.run is not None
        assert there.run.baseline is not None
        ms = (there.run.baseline.free_ns or 0) / 1e6
        yield _step(name, EXAMPLE / "h200" / name, (ms, ms))


def _step(name: str, recording: Path, measured: tuple[float, float]) -> Step:
    found = diagnosed(recording)
    there = gpuprof.project(found, [H100], host_factor=1.0, whole_batch=True).gpus[0].step_ns
    here = subject_of(found).step_ns.expected
    return Step(
        name, found.verdict.bound or "–", here / 1e6, there.low / 1e6, there.expected / 1e6, there.high / 1e6, measured
    )


@functools.cache
def diagnosed(path: Path) -> gpuprof.Diagnosis:
    return gpuprof.diagnose(path)


def kernels() -> Iterator[Kernels]:
    for name in TRAININGS:
        here, there = (subject_of(diagnosed(EXAMPLE / gpu / name)) for gpu in ("h200", "h100"))
        factor = ProjectedStep(here, question([H100])).scaled(reach(there.gpu), 1.0).factor
        ours, theirs = _rows(here), _rows(there)
        found = defaultdict(list)
        for key, rows in ours.items():
            first = rows[0]
            work, parts = here.roofline.work, here.roofline.split
            moves = work.guessed[first] or (parts.bound[first] == MEMORY and not work.over_link[first])
            if moves and key in theirs:
                took = [_median_ns(one, key_rows) for one, key_rows in ((here, rows), (there, theirs[key]))]
                if took[0] >= LEAST_NS:
                    band = GUESSED if work.guessed[first] else _band(float(np.median(parts.efficiency[rows])))
                    found[band].append((took[0] * len(rows), took[1] / took[0], float(np.median(factor[rows]))))
        for band in (*itertools.starmap(_band_of, itertools.pairwise(BANDS)), GUESSED):
            if found[band]:
                ns, measured, projected = np.array(found[band]).T
                yield Kernels(
                    name, band, float(ns.sum()) / 1e6, *(
                        float(np.average(x, weights=ns)) for x in (measured, projected, abs(projected / measured - 1))
                    ),
                )  # fmt: skip


def _band(used: float) -> str:
    return next(_band_of(low, high) for low, high in itertools.pairwise(BANDS) if low <= used < high)


def _band_of(low: float, high: float) -> str:
    return f"above {low:.1f}" if np.isinf(high) else f"{low:.1f}–{high:.1f}"


def _rows(subject: Subject) -> dict[tuple[object, ...], list[int]]:
    """GPU events of the window by name, grid and traffic as far as it is known."""
    timeline, gpu = subject.graph.timeline, subject.graph.timeline.trace.gpu
    found = defaultdict(list)
    for row in timeline.members.tolist():
        grid = (int(gpu.grid_x[row]), int(gpu.grid_y[row]), int(gpu.grid_z[row]))
        work = subject.roofline.work
        traffic = 0.0 if work.guessed[row] else float(np.nan_to_num(work.traffic_bytes[row]))
        found[timeline.trace.strings[gpu.name[row]], grid, traffic].append(row)
    return found


def _median_ns(subject: Subject, rows: list[int]) -> float:
    gpu = subject.graph.timeline.trace.gpu
    return float(np.median(gpu.end_ns[rows] - gpu.start_ns[rows]))


def page(found: list[Step], bands: list[Kernels]) -> Iterator[str]:
    yield INTRODUCTION
    yield "| recording | bound | here | projected | 80 % | measured there | off | |"
    yield "|---|---|---:|---:|---:|---:|---:|---|"
    for one in found:
        measured = "–".join(dict.fromkeys(f"{ms:,.1f}" for ms in one.measured))
        yield (
            f"| {one.name} | {one.bound} | {one.here:,.1f} | {one.projected:,.1f} | {one.low:,.1f}–{one.high:,.1f} "
            f"| {measured} | {_percent(one.error)} | {'✓' if one.meets else 'outside'} |"
        )
    errors = [abs(one.error) for one in found]
    yield "\n" + textwrap.fill(
        f"The median error is {100 * statistics.median(errors):.1f} %, the largest {100 * max(errors):.0f} %; "
        f"{sum(one.meets for one in found)} of {len(found)} intervals meet what was measured. {HOSTS}",
        120,
    )
    yield KERNELS
    yield "| training | share of the bandwidth | time here | measured | projected | off |"
    yield "|---|---:|---:|---:|---:|---:|"
    for band in bands:
        yield (
            f"| {band.training} | {band.share} | {band.ms:,.0f} ms | {band.measured:.2f}× | {band.projected:.2f}× "
            f"| {100 * band.off:.0f} % |"
        )


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−") if abs(share) >= 0.0005 else "0 %"


INTRODUCTION = """\
<!-- Written by python -m benchmarks.other_gpus: change that. -->
# An H100, projected and measured

Recordings on an H200, projected to an H100 SXM with host factor 1, and the same trainings measured on an H100 SXM:
unprofiled steps in milliseconds; for scenarios the lowest and highest of three fresh processes. An H100 has the H200's
chip and 0.70 of its bandwidth. How projections are made: [projection.md](projection.md).
"""
HOSTS = (
    "By `gpuprof gpus --measure` (a launch 6.4 µs on both, a loop 55.6 and 55.5 ns) the hosts were equally fast, and "
    "yet host-bound processes on them vary by a third; those of qwen3_8b_lora took 601 to 765 ms on the H200, too."
)
KERNELS = """
## Memory-bound kernels

Grouped by the share of the H200's bandwidth that they reach: their time on the H100 relative to the H200, averaged by
time, and the error of single kernels. If all of their time scaled with the bandwidth, the ratio would be 1.43×. The
rule that traffic and instructions add as squares was chosen on these kernels and on those of a mixture of experts; the
steps of the scenarios above were not used. The share is not known for kernels launched inside a library's own autograd
function, whose tensors need not be theirs: they are assumed to reach 0.9, which was chosen on them, too. Fills (0.8 of
the H200's bandwidth) take equally long on both, which is not understood: in dense_ds2 they are two fifths of the group
from 0.6 to 0.8.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "other_gpus.md")
    args = parser.parse_args()
    args.out.write_text("\n".join(page(list(steps()), list(kernels()))) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
