"""Interval algebra on half-open integer intervals [start, end), as pairs of numpy arrays.

Intervals with end <= start are empty and count for nothing. All results are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.tracefile.trace import I64


@dataclass(frozen=True, slots=True)
class Intervals:
    """Disjoint, non-touching intervals in ascending order."""

    start: I64
    end: I64

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total(self) -> int:
        """Summed length."""
        return int((self.end - self.start).sum())


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: I64, end: I64) -> Intervals:
    """The union of any intervals."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if not len(start):
        return EMPTY
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.empty(len(start), bool)
    first[0] = True
    np.greater(start[1:], reach[:-1], out=first[1:])
    begins = np.flatnonzero(first)
    lasts = np.append(begins[1:], len(start)) - 1
    return Intervals(start[begins], reach[lasts])


def join(*parts: Intervals) -> Intervals:
    """The union of several unions."""
    parts = tuple(p for p in parts if len(p))
    if len(parts) < 2:
        return parts[0] if parts else EMPTY
    return union(np.concatenate([p.start for p in parts]), np.concatenate([p.end for p in parts]))


def clip(intervals: Intervals, low: int, high: int) -> Intervals:
    """The part inside [low, high)."""
    start, end = np.maximum(intervals.start, low), np.minimum(intervals.end, high)
    keep = end > start
    return Intervals(start[keep], end[keep])


def complement(intervals: Intervals, low: int, high: int) -> Intervals:
    """The part of [low, high) that `intervals` leaves free."""
    inside = clip(intervals, low, high)
    start = np.concatenate([[low], inside.end]).astype(np.int64)
    end = np.concatenate([inside.start, [high]]).astype(np.int64)
    keep = end > start
    return Intervals(start[keep], end[keep])


class Cover:
    """Answers "how much of the time before t do these intervals cover", for many t at once."""

    __slots__ = ("_before", "_end", "_start")

    def __init__(self, intervals: Intervals) -> None:
        self._start, self._end = intervals.start, intervals.end
        self._before = np.concatenate([[0], np.cumsum(intervals.end - intervals.start)]).astype(np.int64)

    def before(self, t: I64) -> I64:
        """Covered length in (-∞, t)."""
        i = np.searchsorted(self._start, t, side="right")
        covered = self._before[i]
        inside = i > 0
        if inside.any():
            over = self._end[i[inside] - 1] - t[inside]
            covered[inside] -= np.maximum(over, 0)
        return covered

    def between(self, start: I64, end: I64) -> I64:
        """Covered length in each [start, end)."""
        return self.before(end) - self.before(start)
