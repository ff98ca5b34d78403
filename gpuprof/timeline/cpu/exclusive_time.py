"""Divides the time of overlapping intervals among them; the shares sum to their union."""

from __future__ import annotations

import numpy as np

from gpuprof.tracefile.trace import F64, I64, U8


def exclusive_ns(start: I64, end: I64, level: U8, low: int, high: int) -> F64:
    """Nanoseconds of [low, high) that belong to each interval.

    At every moment the lowest `level` of those that run owns the time, and intervals of that level share it in equal
    parts. So the sum over all intervals is the length of their union, and the sum over a level what that level has
    where no lower one runs.
    """
    first, last = np.maximum(start, low), np.minimum(end, high)
    inside = last > first
    owned = np.zeros(len(start), np.float64)
    if not inside.any():
        return owned
    moments = np.unique(np.concatenate([first[inside], last[inside]]))
    length = np.diff(moments).astype(np.float64)
    begins, ends = np.searchsorted(moments, first), np.searchsorted(moments, last)
    free = np.ones(len(length), bool)
    for one in np.unique(level[inside]).tolist():
        rows = np.flatnonzero(inside & (level == one))
        change = np.bincount(begins[rows], minlength=len(moments)) - np.bincount(ends[rows], minlength=len(moments))
        running = np.cumsum(change)[:-1]
        own = free & (running > 0)
        # The time that an interval which runs throughout would own, summed from the first moment on.
        sums = np.concatenate([[0.0], np.cumsum(np.where(own, length / np.maximum(running, 1), 0.0))])
        owned[rows] = sums[ends[rows]] - sums[begins[rows]]
        free &= ~own
    return owned
