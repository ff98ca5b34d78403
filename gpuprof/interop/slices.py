"""Places spans on tracks as viewers require: on one track, two spans are nested or disjoint, never partly
overlapping."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from gpuprof.tracefile.trace import ANNOTATION, I32, I64, Trace


@dataclass(frozen=True, slots=True)
class Placement:
    """Positions of spans. A lane (thread, stream) with partly overlapping spans has several tracks."""

    order: I64
    """Rows by lane; on each track every span comes after those that enclose it."""
    part: I32
    """For each row: 0 for the lane's own track, 1 for its second track, and so on."""
    parent: I64
    """For each row: the row of the innermost enclosing span on its track, or -1."""
    descendants: I64
    """For each row: how many spans of its track it encloses."""


def place(lane: I64, start_ns: I64, end_ns: I64, rank: I64 | None = None) -> Placement:
    """Puts every span on the first track of its lane on which it fits; of two that begin together, the longer one
    first. `end_ns` must not be before `start_ns`. Of spans with the same times, the one with the lower `rank`, else the
    first, encloses the others.
    """
    keys = (-end_ns, start_ns, lane)
    order = np.lexsort(keys if rank is None else (rank, *keys))
    part = np.zeros(len(order), np.int32)
    parent = np.full(len(order), -1, np.int64)
    descendants = np.zeros(len(order), np.int64)
    _place(order, lane.astype(np.int64), start_ns, end_ns, part, parent, descendants)
    return Placement(order, part, parent, descendants)


@numba.njit(cache=True)
def _place(order, lane, start, end, part, parent, descendants):
    """Fills `part`, `parent` and `descendants`."""
    innermost = np.full(8, -1, np.int64)  # per track of the lane: the last span that has not ended
    tracks, before = 0, -1
    for row in order:
        if before < 0 or lane[row] != lane[before]:
            tracks = 0
        before = row
        at = 0
        while at < tracks:
            around = innermost[at]
            while around >= 0 and end[around] <= start[row]:
                around = parent[around]
            innermost[at] = around
            if around < 0 or end[row] <= end[around]:
                break
            at += 1
        if at == tracks:
            tracks += 1
            if tracks > len(innermost):
                more = np.full(2 * len(innermost), -1, np.int64)
                more[: len(innermost)] = innermost
                innermost = more
            innermost[at] = -1
        part[row] = at
        parent[row] = innermost[at]
        innermost[at] = row
    for row in order[::-1]:
        if parent[row] >= 0:
            descendants[parent[row]] += descendants[row] + 1


def preorder(placement: Placement, rows: I64) -> tuple[I64, I64]:
    """For the spans `rows` of one track, in order: positions of each one's start and end among all 2n of them."""
    depth = np.zeros(len(placement.part), np.int64)
    _depths(rows, placement.parent, depth)
    begin = 2 * np.arange(len(rows)) - depth[rows]
    return begin, begin + 2 * placement.descendants[rows] + 1


@numba.njit(cache=True)
def _depths(rows, parent, depth):
    for row in rows:
        if parent[row] >= 0:
            depth[row] = depth[parent[row]] + 1


def separate_ranges(trace: Trace) -> np.ndarray:
    """Mask of the ops that are ranges of a thread with Python frames.

    A range opens and closes inside of frames (`__enter__`, `__exit__`), so it partly overlaps each of them: there,
    ranges need their own lane.
    """
    framed = np.zeros(len(trace.threads) + 1, bool)
    framed[trace.frames.thread] = True
    return (trace.ops.kind == ANNOTATION) & framed[trace.ops.thread]
