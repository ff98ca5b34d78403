"""Which span contains which, per thread, without a Python loop over events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.tracefile.compiled import compiled, read_only
from gpuprof.tracefile.trace import I32, I64, Mask
from gpuprof.units import Convention, WholeNs

ROUNDING_NS: Convention[WholeNs] = 1000
"""A span may end this much later than the one that contains it: recordings in whole microseconds round start and
duration down, each for itself."""


@dataclass(frozen=True, slots=True)
class Nesting:
    """Spans of all threads, ordered by (thread, start, longest first), with two relations between them.

    `order[k]` is the row of the k-th span; `parent[row]` and `begun_in[row]` are rows or -1. They differ only where
    spans overlap partially, as a step does with the optimizer's range if it is a hook of the optimizer that ends it.
    """

    order: I64
    parent: I64
    """The innermost span that contains the whole of each one, give or take ROUNDING_NS at its end."""
    begun_in: I64
    """The span begun last of those that were open when each one began. All spans that are open at a moment are the
    last of them to begin and those of its chain that have not ended."""
    start_ns: I64
    """Starts of the spans, in `order`."""
    end_ns: I64
    """Ends of the spans, by row."""
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
        return climb_to_open(found, self.parent, self.end_ns, t, np.ones(len(self.parent), bool))


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

    parent, begun_in = np.full((2, size), -1, np.int64)
    _around(order, before, ordered_start, ordered_end, parent, begun_in, *np.full((2, size), -1, np.int64))
    bounds = np.flatnonzero(np.diff(ordered_thread, prepend=ordered_thread[0] - 1)) if size else []
    ends = [*bounds[1:], size] if size else []
    lanes = {int(ordered_thread[a]): slice(int(a), int(b)) for a, b in zip(bounds, ends, strict=True)}
    return Nesting(order, parent, begun_in, ordered_start, end_ns, lanes)


@compiled
def _around(order, before, start, end, parent, begun_in, whole, begun):  # pragma: no cover - compiled
    """Fills `parent` and `begun_in`, by row, of spans in order; `before`: the position just before each one on its
    thread, or -1.

    `whole` and `begun`: per position the nearest earlier one of its thread that has not ended, and for a parent is long
    enough. A position that was skipped once is skipped by all later ones: both relations are transitive.
    """
    for k in range(len(order)):
        at = before[k]
        while at >= 0 and end[at] <= start[k]:
            at = begun[at]
        begun[k] = at
        at = before[k]
        while at >= 0 and (end[at] <= start[k] or end[at] + ROUNDING_NS < end[k]):
            at = whole[at]
        whole[k] = at
        if begun[k] >= 0:
            begun_in[order[k]] = order[begun[k]]
        if whole[k] >= 0:
            parent[order[k]] = order[whole[k]]


def inside(nesting: Nesting, rows: Mask) -> Mask:
    """The rows of a mask and all that lie in one of them."""
    found = rows.copy()
    _spread(nesting.order, nesting.parent, found)
    return found


@compiled
def _spread(order, parent, found):  # pragma: no cover - compiled
    for k in range(len(order)):  # a parent stands before what it contains
        row = order[k]
        if parent[row] >= 0 and found[parent[row]]:
            found[row] = True


def climb(rows: I64, parent: I64, stop: Mask) -> I64:
    """Per row the nearest of itself and its ancestors that the mask `stop` holds; -1 where none is."""
    found = rows.astype(np.int64)
    _climb(read_only(parent), read_only(stop), found)
    return found


@compiled
def _climb(parent, stop, found):  # pragma: no cover - compiled
    for i in range(len(found)):
        row = found[i]
        while row >= 0 and not stop[row]:
            row = parent[row]
        found[i] = row


def climb_to_open(rows: I64, parent: I64, end_ns: I64, t: I64, stop: Mask) -> I64:
    """Per row the nearest of itself and its ancestors that the mask `stop` holds and that ends after `t`, a moment per
    row; -1 where none is."""
    found = rows.astype(np.int64)
    _climb_to_open(read_only(parent), read_only(end_ns), read_only(stop), read_only(t), found)
    return found


@compiled
def _climb_to_open(parent, end, stop, t, found):  # pragma: no cover - compiled
    for i in range(len(found)):
        row = found[i]
        while row >= 0 and not (stop[row] and end[row] > t[i]):
            row = parent[row]
        found[i] = row


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
