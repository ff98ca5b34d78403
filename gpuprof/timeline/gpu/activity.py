"""GPU counters while given work ran: utilisation of SMs, tensor cores and memory.

Counters are sampled over the whole device, some thousand times a second, so a sample holds many kernels and the pauses
between them. Each sample's value is divided by time among what ran in it; a pause has no activity. Values are whole
percents: in a sample that is mostly a pause they show rounding rather than work, so such samples are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.timeline.intervals import Cover, union
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import F64, I64
from gpuprof.units import Assumed, Code, Convention, Share


@dataclass(frozen=True, slots=True)
class Activity:
    """Mean percentages of the device's peak while the work ran; None if it was not sampled."""

    busy_ns: int
    """Time of the work that was sampled, ns: in samples of which work filled at least half."""
    sm: float | None
    tensor: float | None
    dram: float | None
    """Read and written together."""


LEAST_FILLED: Assumed[Share] = 0.5
"""Smallest share of a sample that work must fill for it to count. A percent of rounding is then at most two percent of
the work's."""

_COUNTERS = {"sm": ("sm_active",), "tensor": ("tensor_active",), "dram": ("dram_read", "dram_write")}


_OTHER_WORK: Convention[Code] = -1


def activity(timeline: Timeline, key: I64) -> dict[int, Activity]:
    """By group of GPU events: `key` holds each event's group, below 0 for none. Empty where nothing was sampled."""
    counters = timeline.trace.counters
    if not len(counters):
        return {}
    sums: dict[str, dict[int, float]] = {name: {} for name in _COUNTERS}
    busy: dict[str, dict[int, float]] = {name: {} for name in _COUNTERS}
    for device in np.unique(counters.device).tolist():
        for name, parts in _COUNTERS.items():
            time, percent = _samples(timeline, device, parts)
            if len(time) > 1:
                found = _shared(timeline, key, device, time, percent)
                for group, (weighted, covered) in found.items():
                    sums[name][group] = sums[name].get(group, 0.0) + weighted
                    busy[name][group] = busy[name].get(group, 0.0) + covered
    groups = sorted({group for found in sums.values() for group in found})

    def mean(name: str, group: int) -> float | None:
        covered = busy[name].get(group, 0.0)
        return min(sums[name][group] / covered, 100.0) if covered > 0 and group in sums[name] else None

    def sampled(group: int) -> int:
        return round(max(one.get(group, 0.0) for one in busy.values()))

    return {
        group: Activity(sampled(group), mean("sm", group), mean("tensor", group), mean("dram", group))
        for group in groups
    }


def _samples(timeline: Timeline, device: int, names: tuple[str, ...]) -> tuple[I64, F64]:
    """(moments, the sum of several counters at them)."""
    trace = timeline.trace
    counters = trace.counters
    times, values = [], []
    for name in names:
        number = trace.string_ids.get(name, -1)
        rows = np.flatnonzero((counters.device == device) & (counters.name == number))
        time, first = np.unique(counters.time_ns[rows], return_index=True)
        times.append(time)
        values.append(counters.percent[rows][first])
    common = times[0]
    for time in times[1:]:
        common = np.intersect1d(common, time)
    return common, np.sum([v[np.searchsorted(t, common)] for t, v in zip(times, values, strict=True)], axis=0)


def _shared(timeline: Timeline, key: I64, device: int, time: I64, percent: F64) -> dict[int, tuple[float, float]]:
    """Per group (percent × ns, ns) over the samples. A sample is the mean since the one before."""
    gpu = timeline.trace.gpu
    begin, end, value = time[:-1], time[1:], percent[1:]
    here = gpu.device == device
    of_window = np.zeros(len(gpu), bool)
    of_window[timeline.members] = True
    # Work that overlaps the window's work, or belongs to no group, also has its share of a sample.
    group = np.where(of_window & (key >= 0), key, _OTHER_WORK)
    covered = {}
    for one in np.unique(group[here]).tolist():
        rows = here & (group == one)
        covered[one] = Cover(union(gpu.start_ns[rows], gpu.end_ns[rows])).between(begin, end).astype(np.float64)
    total = np.sum(list(covered.values()), axis=0) if covered else np.zeros(len(begin))
    covered.pop(_OTHER_WORK, None)
    filled = total >= LEAST_FILLED * (end - begin)
    # The sampled value is for the whole interval, pauses included, so its sum belongs to the work.
    weight = np.divide(value * (end - begin), total, out=np.zeros(len(begin)), where=filled)
    return {group: (float((ns * weight).sum()), float(ns[filled].sum())) for group, ns in covered.items()}
