"""Captures of CUDA or HIP graphs: what is launched in one is recorded into the graph and runs only when the graph does.

A launch inside a capture has no GPU event, and none is missing. Any thread may launch into a capture (backward passes
do, on autograd's thread), and a recording does not say which stream a launch was for, so a capture counts for all
threads; only launches without a GPU event count as captured.
"""

from __future__ import annotations

import re

import numpy as np

from gpuprof.timeline.intervals import EMPTY, Intervals, union
from gpuprof.tracefile.trace import Mask, Trace

_BEGIN = re.compile(r"^(cuda|hip|cu)StreamBeginCapture")
_END = re.compile(r"^(cuda|hip|cu)StreamEndCapture")


def captures(trace: Trace) -> Intervals:
    """When a graph was being captured, from the call that begins a capture to the one on its thread that ends it.

    A capture that the recording cuts lasts to the edge of the recorded calls.
    """
    calls = trace.calls
    begins, ends = trace.rows_named(calls.name, _BEGIN.search), trace.rows_named(calls.name, _END.search)
    if not (begins.any() or ends.any()):
        return EMPTY
    starts, stops = [], []
    first, last = int(calls.start_ns.min()), int(calls.end_ns.max())
    for thread in np.unique(calls.thread[begins | ends]).tolist():
        mine = calls.thread == thread
        begun, ended = np.sort(calls.start_ns[begins & mine]), np.sort(calls.end_ns[ends & mine])
        after = np.searchsorted(ended, begun, "right")
        starts += begun.tolist()
        stops += [int(ended[i]) if i < len(ended) else last for i in after.tolist()]
        if len(ended) and (not len(begun) or ended[0] <= begun[0]):
            starts.append(first)
            stops.append(int(ended[0]))
    return union(np.array(starts, np.int64), np.array(stops, np.int64))


def within(intervals: Intervals, moment_ns: np.ndarray) -> Mask:
    """Mask of the moments that lie in one of the intervals."""
    at = np.searchsorted(intervals.start, moment_ns, "right") - 1
    found = at >= 0
    found[found] = moment_ns[found] < intervals.end[at[found]]
    return found
