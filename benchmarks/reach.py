"""How close each kind of kernel comes to its roof, by the length of the roof: the distributions of
calibration/reach.py.

    python -m benchmarks.reach            # the table from recordings whose role is `fit`
    python -m benchmarks.reach --test     # the same of recordings that only test it: what share lies below `low`

A recording counts once, however many kernels it has, and within it a kernel by its roof's time. `low` and `high` are
the tenth and the ninetieth percentile, `value` the median. Below the shortest roof the time itself is the distribution.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from benchmarks.calibrate import timeline_of
from benchmarks.fit_or_test import roles
from benchmarks.refit import fit_cases
from gpuprof.costs.roofline import roofline
from gpuprof.diagnosis.detect.gpu.kernel_reach import CELLS, SHORTEST_ROOF_NS, kinds_of, roof_times
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import F64, I64
from scenarios import catalogue

FEWEST = 5
"""Fewest kernels of a cell in a recording."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--test", action="store_true", help="recordings of role test instead")
    test = parser.parse_args().test
    found = [one for timeline in (_tests() if test else _fits()) if (one := _columns(timeline)) is not None]
    for cell in CELLS:
        shares, weights, recordings = _of_cell(found, cell.kinds, cell.from_ns, cell.to_ns)
        if not recordings:
            continue
        low, middle, high = _quantiles(shares, weights, (0.1, 0.5, 0.9))
        unit = "ns" if cell.to_ns <= SHORTEST_ROOF_NS else ""
        text = f"{cell.name:20s} {middle:8.3g} ({low:.3g} to {high:.3g}) {unit:2s} of {recordings} recordings"
        if test:
            beyond = shares > cell.number.high if unit else shares < cell.number.low
            text += (
                f"; {100 * float(weights[beyond].sum() / weights.sum()):.0f} % of the time is worse than the table's"
            )
        print(text)


def _fits() -> Iterator[Timeline]:
    for case in fit_cases().values():
        timeline = timeline_of(case.path)
        if timeline is not None:
            yield timeline


def _tests() -> Iterator[Timeline]:
    for one in catalogue.scenarios():
        path = catalogue.ROOT / one.name / "recording"
        if roles()[f"scenarios/{one.name}"] == "test" and path.exists():
            timeline = timeline_of(path)
            if timeline is not None:
                yield timeline


def _columns(timeline: Timeline) -> tuple[I64, F64, F64] | None:
    """Kind, duration and roof of each kernel whose work is known, ns."""
    roof = roofline(timeline)
    if roof is None:
        return None
    gpu, rows = timeline.trace.gpu, timeline.members
    took = (gpu.end_ns - gpu.start_ns).clip(0)[rows].astype(np.float64)
    roofs = roof_times(roof)[rows]
    known = np.isfinite(roofs) & (took > 0)
    return kinds_of(timeline)[rows][known], took[known], roofs[known]


def _of_cell(found, kinds: tuple[int, ...], from_ns: float, to_ns: float) -> tuple[F64, F64, int]:
    shares, weights = [np.empty(0)], [np.empty(0)]
    for kind, took, roof in found:
        mine = np.isin(kind, kinds) & (roof >= from_ns) & (roof < to_ns)
        if mine.sum() < FEWEST:
            continue
        tiny = to_ns <= SHORTEST_ROOF_NS
        weight = np.ones(int(mine.sum())) if tiny else roof[mine]
        shares.append(took[mine] if tiny else roof[mine] / took[mine])
        weights.append(weight / weight.sum())
    return np.concatenate(shares), np.concatenate(weights), len(shares) - 1


def _quantiles(values: F64, weights: F64, at: tuple[float, ...]) -> tuple[float, ...]:
    order = np.argsort(values)
    along = np.cumsum(weights[order]) / weights.sum()
    return tuple(float(np.interp(one, along, values[order])) for one in at)


if __name__ == "__main__":
    main()
