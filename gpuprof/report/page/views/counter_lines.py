"""Lines over time in the timeline: memory in use on each GPU, where the recording has its allocations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.report.page.views.timeline_window import DrawnRows
from gpuprof.tracefile.trace import ABSENT, I64, Trace
from gpuprof.units import Code, Convention, Points, Published

MOST_POINTS: Convention[Points] = 20_000
"""Points of one line; a screen is a tenth as wide."""
_GPU: Published[Code] = 1
"""`Device Type` of CUDA and HIP devices."""


@dataclass(frozen=True, slots=True)
class CounterLine:
    """A quantity that changes at moments and keeps its value in between."""

    device: int
    name: str
    time_ns: I64
    value: I64


def memory_lines(trace: Trace, part: DrawnRows, most: int = MOST_POINTS) -> list[CounterLine]:
    """Bytes allocated on each GPU over the part; none where the recording has no allocations."""
    memory = trace.memory
    lines = []
    rows = np.flatnonzero((memory.device_type == _GPU) & (memory.allocated_bytes != ABSENT))
    rows = rows[(memory.time_ns[rows] >= part.low_ns) & (memory.time_ns[rows] < part.high_ns)]
    for device in np.unique(memory.device[rows]).tolist():
        mine = rows[memory.device[rows] == device]
        mine = mine[np.argsort(memory.time_ns[mine], kind="stable")]
        kept = mine[lowest_and_highest(memory.allocated_bytes[mine], most)]
        lines.append(CounterLine(int(device), "memory", memory.time_ns[kept], memory.allocated_bytes[kept].clip(0)))
    return lines


def lowest_and_highest(values: I64, most: int) -> I64:
    """Indices of at most about `most` values that keep the shape: the lowest and the highest of every bin."""
    if len(values) <= most:
        return np.arange(len(values))
    bins = np.arange(len(values)) * (most // 2) // len(values)
    order = np.lexsort((values, bins))
    first = np.flatnonzero(np.diff(bins[order], prepend=-1))
    last = np.append(first[1:], len(values)) - 1
    return np.unique(np.concatenate([order[first], order[last]]))
