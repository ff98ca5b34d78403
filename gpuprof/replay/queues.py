"""The full launch queue: how many items a stream takes before its launches block, and the edges that say so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.replay.graph import F64
from gpuprof.replay.work import Work
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.model import I64

QUEUE_ITEMS = 1022
"""Launched and unfinished items that a stream takes, where the recording does not show it filled (H200, CUDA 13)."""
FEWEST_FULL = 5
NEARLY_ALL = 0.9
LONG = 2.0
"""A queue was full at some depth if launches at that depth were seen at least FEWEST_FULL times, NEARLY_ALL of them
returned no earlier than the item ended that had to make room, and half took LONG times the usual time of their name."""


@dataclass(frozen=True, slots=True)
class QueueEdges:
    """Launches that may not begin before an earlier item of their stream has ended."""

    work: I64
    """Index of the work whose launch waits."""
    source: I64
    """Index of the item that must have ended; of one at or after `work` it is the previous round's."""
    lag_ns: F64
    own_ns: F64
    """What the launching call itself takes; NaN where the call did not wait, and its recorded time is its own."""


def queue_edges(timeline: Timeline, work: Work) -> QueueEdges:
    """For every launch the item of its stream that has to be done before there is room."""
    calls, low = timeline.trace.calls, timeline.window[0]
    parts = []
    for stream in range(len(work.streams)):
        items = np.flatnonzero((work.stream == stream) & work.head & (work.piece >= 0) & ~work.blocks)
        if len(items) < 2:
            continue
        begun = (calls.start_ns[work.call[items]] - low).astype(np.float64)
        returned = work.launched_ns[items]
        names = calls.name[work.call[items]]
        ended = _item_ends(work, items)
        depth = np.arange(len(items)) - np.searchsorted(np.maximum.accumulate(ended), begun, side="right")
        own = _usual_own(names, returned - begun, depth)
        limit = _limit(depth, returned, begun, ended, own)
        k = np.arange(len(items))
        source = k - limit
        in_window = source >= 0
        free = np.full(len(items), -np.inf)
        free[in_window] = ended[source[in_window]]
        waited = in_window & (free > begun) & (free <= returned)
        possible = (free <= begun) | waited  # a launch that returned earlier shows that there was room
        left = returned - free
        own_ns = np.where(waited, np.minimum(own, left), np.nan)
        lag = np.where(waited, left - np.nan_to_num(own_ns), 0.0)
        wrapped = items[source[possible] % len(items)] if limit <= len(items) else None
        if wrapped is not None:
            parts.append((items[possible], wrapped, lag[possible], own_ns[possible]))
    if not parts:
        none = np.empty(0, np.int64)
        return QueueEdges(none, none, none.astype(np.float64), none.astype(np.float64))
    return QueueEdges(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _item_ends(work: Work, items: I64) -> F64:
    """When each launch's work is done: of a CUDA graph its last node."""
    ends = work.end_ns[items].copy()
    others = np.flatnonzero(~work.head & (work.piece >= 0))
    if len(others):
        order = np.argsort(work.call[items], kind="stable")
        k = np.minimum(np.searchsorted(work.call[items][order], work.call[others]), len(items) - 1)
        same = work.call[items][order][k] == work.call[others]
        np.maximum.at(ends, order[k[same]], work.end_ns[others[same]])
    return ends


def _usual_own(names: np.ndarray, took: F64, depth: I64) -> F64:
    """The median time of calls of each name, at less than half the greatest depth where there are any."""
    own = np.empty(len(names))
    shallow = depth <= depth.max() / 2
    for name in np.unique(names).tolist():
        mine = names == name
        some = mine & shallow if (mine & shallow).any() else mine
        own[mine] = np.median(took[some])
    return own


def _limit(depth: I64, returned: F64, begun: F64, ended: F64, own: F64) -> int:
    """The depth at which launches block."""
    most = int(depth.max())
    at = np.flatnonzero(depth == most)
    source = at - most
    if most < 1 or len(at) < FEWEST_FULL:
        return max(QUEUE_ITEMS, most + 1)
    waited = returned[at] >= ended[source]
    long = np.median((returned - begun)[at] / np.maximum(own[at], 1)) >= LONG
    return most if np.mean(waited) >= NEARLY_ALL and long else max(QUEUE_ITEMS, most + 1)
