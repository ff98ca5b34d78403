"""Recordings without ops: there the time between two calls is all that shows what PyTorch did."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.timeline.intervals import Intervals
from gpuprof.tracefile.model import OP, Trace

DISPATCH_NS = 100_000
"""Between the calls of two ops a thread that launches spends less than this: of the stretches between calls in
recordings of launch-bound trainings on H200 hosts 99 % are shorter (36 to 105 µs), and few lie between this and a
millisecond. In a longer one the host does something else."""


def has_ops(trace: Trace) -> bool:
    """Whether any op is known; ranges that a person put around code are none."""
    return bool(np.any(trace.ops.kind == OP))


def recorded_ops(trace: Trace) -> NDArray[np.bool_]:
    """Mask of the ops and ranges that were recorded here, and cost it time; the others are from another recording."""
    return (trace.ops.kind != OP) | (trace.ops_from is None)


def bridged(calls: Intervals, most_ns: int = DISPATCH_NS) -> Intervals:
    """The intervals with the stretches of up to `most_ns` between them."""
    if len(calls) < 2:
        return calls
    apart = np.flatnonzero(calls.start[1:] - calls.end[:-1] > most_ns)
    return Intervals(
        calls.start[np.concatenate([[0], apart + 1])], calls.end[np.concatenate([apart, [len(calls) - 1]])]
    )
