"""What a recording contains of PyTorch's dispatch: all ops, only the outer ones, or none; without ops only the time
between two calls shows it."""

from __future__ import annotations

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.timeline.intervals import Intervals
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.distinct import ordered
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import OP, Mask, Trace
from gpuprof.units import Assumed, Ops

FAR = np.iinfo(np.int64).max
"""After the end of every recording."""

FEWEST_OPS: Assumed[Ops] = 500
"""Fewer ops than this do not show whether some were left out."""


def has_ops(trace: Trace) -> bool:
    """Whether any op is known; ranges that a user put around code are not ops."""
    return bool(np.any(trace.ops.kind == OP))


def recorded_ops(trace: Trace) -> Mask:
    """Mask of the ops and ranges of this recording itself, whose recording took time; others were added from another
    one."""
    return (trace.ops.kind != OP) | (trace.ops_from is None)


def bridged(calls: Intervals, most_ns: int = calibrated.DISPATCH_NS.whole) -> Intervals:
    """The intervals with the stretches of up to `most_ns` between them."""
    if len(calls) < 2:
        return calls
    apart = np.flatnonzero(calls.start[1:] - calls.end[:-1] > most_ns)
    return Intervals(
        calls.start[np.concatenate([[0], apart + 1])], calls.end[np.concatenate([apart, [len(calls) - 1]])]
    )


@remembered
def lacks_inner_ops(timeline: Timeline) -> bool:
    """Whether ops inside ops that make no call were removed after the recording: recording them had also cost CPU
    time."""
    trace, nesting = timeline.trace, timeline.nesting
    ops = trace.ops
    rows = np.flatnonzero(ops.kind == OP)
    if len(rows) < FEWEST_OPS or trace.ops_from is not None or not len(trace.calls):
        return False
    parent = nesting.parent[rows]
    inside = rows[(parent >= 0) & (ops.kind[parent] == OP)]
    silent = len(inside)
    for thread in np.unique(trace.calls.thread).tolist():
        begun = ordered(trace.calls.start_ns[trace.calls.thread == thread])
        mine = inside[ops.thread[inside] == thread]
        following = np.append(begun, FAR)[np.searchsorted(begun, ops.start_ns[mine], side="left")]
        silent -= int(np.count_nonzero(following <= ops.end_ns[mine]))
    return len(inside) > 0 and silent < calibrated.SILENT_SHARE.value * len(rows)
