"""Sums of the user's ranges and their GPU time, and GPU counters per phase."""

from __future__ import annotations

import numpy as np

from gpuprof.diagnosis.result.diagnosis import PhaseActivity, RangeTime
from gpuprof.timeline.gpu.activity import activity
from gpuprof.timeline.gpu.range_gpu_work import project
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.range_names import unnumbered
from gpuprof.timeline.timeline import Timeline
from gpuprof.units import Assumed, Convention, Names, WholeNs

MOST_NAMES: Convention[Names] = 100
"""Most names that are listed; programs that number their ranges have a few dozen once the numbers are removed."""
SAMPLED_NS: Assumed[WholeNs] = 1_000_000
"""Least GPU time for a mean of counters: ten samples at the usual rate."""


def range_times(timeline: Timeline) -> tuple[RangeTime, ...]:
    """Ranges by name without a trailing index, most CPU wall time first."""
    trace, found, (_, high) = timeline.trace, project(timeline), timeline.window
    ops = trace.ops
    ids, inverse = np.unique(ops.name[found.row], return_inverse=True)
    names = [unnumbered(trace.strings[i]) for i in ids.tolist()]
    numbers = {name: k for k, name in enumerate(dict.fromkeys(names))}
    group = np.array([numbers[name] for name in names], np.int64)[inverse.reshape(-1)] if len(ids) else inverse
    host = np.maximum(np.minimum(ops.end_ns[found.row], high) - ops.start_ns[found.row], 0)

    def summed(values: np.ndarray) -> list[int]:
        totals = np.zeros(len(numbers), np.int64)
        np.add.at(totals, group, values)
        return totals.tolist()

    columns = (np.ones(len(group), np.int64), host, found.gpu_ns, found.busy_ns, found.events)
    rows = [RangeTime(name, *row) for name, row in zip(numbers, zip(*map(summed, columns), strict=True), strict=True)]
    return tuple(sorted(rows, key=lambda row: (-row.ns, row.name))[:MOST_NAMES])


def phase_activity(timeline: Timeline) -> tuple[PhaseActivity, ...] | None:
    """GPU counters per phase, for phases with enough samples; None if no counters were recorded."""
    if not len(timeline.trace.counters):
        return None
    found = activity(timeline, timeline.phase.astype(np.int64))
    return tuple(
        PhaseActivity(PHASES[code], one.busy_ns, one.sm, one.tensor, one.dram)
        for code, one in found.items()
        if one.busy_ns >= SAMPLED_NS
    )
