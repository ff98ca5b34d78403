"""Which span lies in which, per thread, without a Python loop over events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.tracefile.model import I32, I64


@dataclass(frozen=True, slots=True)
class Nesting:
    """Spans of all threads, ordered by (thread, start, longest first), with the parent of each.

    `order[k]` is the row of the k-th span; `parent[row]` is a row or -1. A span that outlasts the one that it
    begins in (a clock that jumped, a name cut by the recording) counts as inside it.
    """

    order: I64
    parent: I64
    start_ns: I64
    """In `order`."""
    end_ns: I64
    """By row."""
    lanes: dict[int, slice]
    """Thread → its part of `order`."""

    def innermost(self, thread: I32, t: I64) -> I64:
        """Row of the innermost span on each `thread` with start <= t < end, else -1."""
        found = np.full(len(t), -1, np.int64)
        for lane, at in _groups(thread):
            part = self.lanes.get(lane)
            if part is None:
                continue
            k = np.searchsorted(self.start_ns[part], t[at], side="right") - 1
            inside = k >= 0
            found[at[inside]] = self.order[part][k[inside]]
        return climb(found, self.parent, lambda rows, which: self.end_ns[rows] <= t[which])


def nest(thread: I32, start_ns: I64, end_ns: I64, number: I64 | None = None) -> Nesting:
    """The nesting of spans given as columns.

    Of two spans with the same times the one with the lower `number` is the outer one: ids are given out as spans
    begin. Without numbers it is the one that stands first.
    """
    keys = (-end_ns, start_ns, thread)
    order = np.lexsort(keys if number is None else (number, *keys))
    ordered_thread, ordered_start, ordered_end = thread[order], start_ns[order], end_ns[order]
    size = len(order)
    before = np.arange(-1, size - 1, dtype=np.int64)
    if size:
        before[np.flatnonzero(np.diff(ordered_thread, prepend=ordered_thread[0] - 1))] = -1
    # Between a span and its candidate parent every span has ended before the span starts. That stays true when a
    # candidate that has ended too hands over to its own candidate, final or not, so all spans may jump at once.
    parent = before.copy()
    active = np.flatnonzero(parent >= 0)
    while len(active):
        candidate = parent[active]
        ended = (candidate >= 0) & (ordered_end[candidate] <= ordered_start[active])
        active = active[ended]
        parent[active] = parent[candidate[ended]]
    rows = np.full(size, -1, np.int64)
    has = parent >= 0
    rows[order[has]] = order[parent[has]]
    bounds = np.flatnonzero(np.diff(ordered_thread, prepend=ordered_thread[0] - 1)) if size else []
    ends = [*bounds[1:], size] if size else []
    lanes = {int(ordered_thread[a]): slice(int(a), int(b)) for a, b in zip(bounds, ends, strict=True)}
    return Nesting(order, rows, ordered_start, end_ns, lanes)


def climb(rows: I64, parent: I64, leave) -> I64:
    """Moves every row to its nearest ancestor-or-self for which `leave(rows, which)` is False; -1 where none is."""
    rows = rows.copy()
    active = np.flatnonzero(rows >= 0)
    while len(active):
        leaving = leave(rows[active], active)
        active = active[leaving]
        rows[active] = parent[rows[active]]
        active = active[rows[active] >= 0]
    return rows


def inherit(own: np.ndarray, parent: I64, unset: int) -> np.ndarray:
    """Every row's value, taken from the nearest ancestor-or-self that has one; `unset` where none has."""
    source = np.where(own != unset, np.arange(len(own)), parent)
    source[source < 0] = np.flatnonzero(source < 0)
    while True:
        following = source[source]
        if np.array_equal(following, source):
            return own[source]
        source = following


def busiest_thread(thread: I32, start_ns: I64) -> int:
    """The thread with most spans; of several, the one that begins first."""
    counts = np.bincount(thread)
    rows = np.flatnonzero(counts[thread] == counts.max())
    return int(thread[rows[start_ns[rows].argmin()]])


def _groups(keys: I32):
    """(key, indices) of each distinct key."""
    if not len(keys):
        return
    order = np.argsort(keys, kind="stable")
    bounds = np.flatnonzero(np.diff(keys[order])) + 1
    for at in np.split(order, bounds):
        yield int(keys[at[0]]), at
