"""Holes: stretches of the steps in which nothing at all was recorded, on any thread and any device.

A program that does something else in every step (reads a file, computes in Python) leaves such stretches in every step.
One that occurs once, or fills most of the only step, may be anything: the program's start, events that the profiler
lost, a process that was suspended, or Python code.
"""

from __future__ import annotations

import numpy as np

from gpuprof.timeline.intervals import EMPTY, Intervals, complement, union
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import OP
from gpuprof.units import Assumed, Share, WholeNs

HOLE_OF_STEP: Assumed[Share] = 0.5
"""A hole is at least this part of the usual step; shorter silence is Python code between two ops."""
SHORTEST_HOLE_NS: Assumed[WholeNs] = 1_000_000
SAME_STRETCH: Assumed[Share] = 0.5
"""If most steps have a stretch of at least this share of its length, it is something that the program does in each
step."""


@remembered
def holes(timeline: Timeline) -> Intervals:
    """The holes of the window. Silence up to its end is not among them: how a recording ends is judged elsewhere."""
    trace, steps, (low, high) = timeline.trace, timeline.steps, timeline.window
    ops = trace.ops
    # A range that says what is done (loading data, saving) explains its time; one that is a step does not.
    telling = (ops.kind == OP) | (timeline.host.named & ~np.isin(ops.start_ns, steps.start_ns))
    if not (ops.kind == OP).any() and not len(trace.calls):
        return EMPTY
    tables = (trace.calls, trace.gpu, trace.frames)
    seen = union(
        np.concatenate([ops.start_ns[telling], *(table.start_ns for table in tables)]),
        np.concatenate([ops.end_ns[telling], *(table.end_ns for table in tables)]),
    )
    free = complement(seen, low, high)
    took = free.end - free.start
    usual = float(np.median(steps.end_ns - steps.start_ns))
    last = seen.end[-1] if len(seen) else low
    rows = np.flatnonzero((took >= max(HOLE_OF_STEP * usual, SHORTEST_HOLE_NS)) & (free.end <= last))
    count = len(steps.start_ns)
    if count > 1:
        rows = np.array(
            [k for k in rows.tolist() if not _recurs(free, took >= SAME_STRETCH * took[k], timeline)], np.int64
        )
    return Intervals(free.start[rows], free.end[rows])


def _recurs(free: Intervals, alike: np.ndarray, timeline: Timeline) -> bool:
    """Whether most steps have one of these stretches."""
    steps = timeline.steps
    at = np.unique(np.searchsorted(steps.start_ns, free.start[alike], side="right") - 1)
    return 2 * len(at) > len(steps.start_ns)
