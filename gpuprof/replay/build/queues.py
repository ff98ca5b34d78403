"""The full launch queue: how many items a stream takes before its launches block, and the edges that say so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.replay.build.calls import ReplayCalls
from gpuprof.replay.build.work import GpuWork
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Launches, Ratio, Share

FEWEST_FULL: Assumed[Launches] = 5
FULL_SHARE: Assumed[Share] = 0.9
UNRECORDED_ITEMS: Assumed[Share] = 1 / 64
"""Largest share of a queue's room taken by items that are not recorded as work (events, markers)."""
LONG_CALL: Assumed[Ratio] = 2.0
"""A queue was full at some depth if launches at that depth were seen at least FEWEST_FULL times, FULL_SHARE of them
returned no earlier than the item ended that had to make room, and half took LONG_CALL times the usual time of their
name."""
SOON_CALL: Assumed[Ratio] = 4.0
DEEP_QUEUE: Assumed[Share] = 0.5
"""If all launches wait, no usual time is known: then, in a queue of at least DEEP_QUEUE of the usual items, half of the
calls took SOON_CALL times as long as they still lasted after that item ended."""


@dataclass(frozen=True, slots=True)
class QueueEdges:
    """Launches that may not begin before an earlier item of their stream has ended."""

    work: I64
    """Index of the work whose launch waits."""
    source: I64
    """Index of the item that must have ended; of one at or after `work` it is the previous round's."""
    freed_ns: F64
    """When that item had ended, as recorded, or when the launch that waited for it returned; -inf for an item of the
    previous round if neither shows it. Work that was queued when the recording began represents the last items of the
    previous round."""
    lag_ns: F64
    own_ns: F64
    """Own time of the launching call, ns; NaN if the call did not wait, so that all of its recorded time is its own."""
    carried_ns: F64
    """Per stream, when work from before the window ended, ns: the start of its first item if launches waited for
    unrecorded work."""


def queue_edges(work: GpuWork, calls: ReplayCalls) -> QueueEdges:
    """For every launch the item of its stream that must be done before there is room."""
    streams = [_Items(work, calls, stream) for stream in range(len(work.streams))]
    carried = work.carried_ns.copy()
    streams = [items for items in streams if len(items.work)]
    if not streams:
        none, never = np.empty(0, np.int64), np.empty(0)
        return QueueEdges(none, none, never, never, never, work.carried_ns)
    own = _usual_own(streams)
    limit = _limit(streams, own)
    parts = [_edges(items, own, limit) for items in streams]
    for items in streams:
        if _waited_unseen(items, _own_ns(items, own), limit).any():
            carried[work.stream[items.work[0]]] = items.first_ns
    launch, source, freed, lag, own_ns = (np.concatenate(column) for column in zip(*parts, strict=True))
    return QueueEdges(launch, source, freed, lag, own_ns, carried)


class _Items:
    """What was launched on one stream: a CUDA graph is one item."""

    def __init__(self, work: GpuWork, calls: ReplayCalls, stream: int) -> None:
        self.work = np.flatnonzero((work.stream == stream) & work.head & (work.piece >= 0))
        call = work.call[self.work]
        self.begun, self.returned = calls.start_ns[call], calls.end_ns[call]
        self.last = _last_of(work, self.work)
        """The work that ends each item."""
        self.ended = np.maximum.accumulate(work.end_ns[self.last])
        self.names = calls.name[call]
        self.blocks = work.blocks[self.work]
        self.first_ns = float(work.start_ns[self.work].min(initial=np.inf))
        """When the window's first item began."""
        queued = (work.stream == stream) & work.head & (work.piece < 0)
        if len(self.work):
            queued &= work.start_ns < work.start_ns[self.work].min()
        launches, launch = np.unique(work.correlation[queued], return_inverse=True)
        ended = np.full(len(launches), -np.inf)
        np.maximum.at(ended, launch.reshape(-1), work.end_ns[queued])
        self.queued = np.maximum.accumulate(np.sort(ended))
        """When the items ended that had been launched before the window."""
        done = np.searchsorted(self.ended, self.begun, side="right")
        left = len(self.queued) - np.searchsorted(self.queued, self.begun, side="right")
        self.depth = np.maximum(np.arange(len(self.work)) - done, 0) + left
        """Items launched and not done when each call began."""

    def freed_ns(self, item: I64) -> F64:
        """When these items had ended; negative ones are of the previous round, -inf if unrecorded."""
        ended = np.concatenate([self.queued, self.ended])
        at = item + len(self.queued)
        return np.where(at >= 0, ended[np.maximum(at, 0)], -np.inf)

    def freed_within(self, item: I64, own: dict[int, float], most: int) -> I64:
        """For each call that took long, the last of the `most` items after this one that ended within it: that one made
        room, since others took some. The item itself for other calls."""
        if not most:
            return item
        ended = np.concatenate([self.queued, self.ended])
        last = np.searchsorted(ended, self.returned, side="right") - 1
        last = np.minimum(last, item + len(self.queued) + most)
        usual = np.array([own.get(name, np.inf) for name in self.names.tolist()])
        found = (self.returned - self.begun > LONG_CALL * usual) & (last >= 0) & (last > item + len(self.queued))
        found &= ended[np.maximum(last, 0)] > self.begun
        return np.where(found, last - len(self.queued), item)


def _edges(items: _Items, own: dict[int, float], limit: int) -> tuple[I64, I64, F64, F64, F64]:
    count = len(items.work)
    usual = _own_ns(items, own)
    unseen = _waited_unseen(items, usual, limit)
    if limit > count:
        # A round fits into the queue: what held these launches up ran in the previous round, at their own position at
        # the latest.
        source, free = np.arange(count), np.full(count, -np.inf)
    else:
        source = np.arange(count) - limit
        free = items.freed_ns(source)
        source = np.where(free <= items.begun, items.freed_within(source, own, int(limit * UNRECORDED_ITEMS)), source)
        free = items.freed_ns(source)
    free = np.where(unseen, items.returned - usual, free)
    waited = (free > items.begun) & (free <= items.returned)
    # A launch that returned earlier shows that there was room.
    possible = waited | ((free <= items.begun) & (limit <= count))
    left = items.returned - free
    # The own time of blocking copies is separated from their wait elsewhere.
    own_ns = np.where(waited & ~items.blocks, np.minimum(usual, left), np.nan)
    lag = np.where(waited & ~items.blocks, left - np.nan_to_num(own_ns), 0.0)
    return items.work[possible], items.last[source[possible]], free[possible], lag[possible], own_ns[possible]


def _own_ns(items: _Items, own: dict[int, float]) -> F64:
    """Usual own time of each launch, ns."""
    return np.maximum([own.get(name, 0.0) for name in items.names.tolist()], 0.0)


def _waited_unseen(items: _Items, usual: F64, limit: int) -> Mask:
    """Launches that waited for room made by an item of an earlier round whose end was not recorded.

    Such an item ran before the window's first, so the call began before that did. The call took LONG_CALL times its
    usual time, and no longer than the same item of the window runs; there are at least FEWEST_FULL."""
    count = len(items.work)
    source = np.arange(count) - limit
    runs = np.diff(items.ended, prepend=items.ended[0])
    took = items.returned - items.begun
    unseen = (source < 0) & np.isneginf(items.freed_ns(source)) & (items.begun < items.first_ns) & ~items.blocks
    unseen &= (took > LONG_CALL * usual) & (took - usual <= runs[source % count])
    return unseen & (np.count_nonzero(unseen) >= FEWEST_FULL)


def _last_of(work: GpuWork, items: I64) -> I64:
    """The last work of each launch: for a CUDA graph the node that ends last, on any stream."""
    others = np.flatnonzero(~work.head & (work.piece >= 0))
    if not len(others) or not len(items):
        return items
    order = np.argsort(work.call[items], kind="stable")
    k = np.minimum(np.searchsorted(work.call[items][order], work.call[others]), len(items) - 1)
    same = work.call[items][order][k] == work.call[others]
    item, node = np.concatenate([np.arange(len(items)), order[k[same]]]), np.concatenate([items, others[same]])
    by_end = np.lexsort((work.end_ns[node], item))
    ends = np.flatnonzero(np.diff(item[by_end], append=len(items)))
    return node[by_end[ends]]


def _usual_own(streams: list[_Items]) -> dict[int, float]:
    """The median time of launches of each name, at less than half the greatest depth where there are any."""
    names = np.concatenate([items.names[~items.blocks] for items in streams])
    took = np.concatenate([(items.returned - items.begun)[~items.blocks] for items in streams])
    depth = np.concatenate([items.depth[~items.blocks] for items in streams])
    own = {}
    shallow = depth <= depth.max(initial=0) / 2
    for name in np.unique(names).tolist():
        mine = names == name
        own[name] = float(np.median(took[mine & shallow] if (mine & shallow).any() else took[mine]))
    return own


def _limit(streams: list[_Items], own: dict[int, float]) -> int:
    """The depth at which launches block, on any stream."""
    most = max(int(items.depth.max()) for items in streams)
    waited, longer, soon = [], [], []
    for items in streams:
        at = np.flatnonzero((items.depth == most) & ~items.blocks)
        left = items.returned[at] - items.freed_ns(at - most)
        waited += (left >= 0).tolist()
        usual = np.array([own[name] for name in items.names[at].tolist()])
        took = (items.returned - items.begun)[at]
        longer += (took / np.maximum(usual, 1)).tolist()
        soon += (took / np.maximum(left, 1)).tolist()
    full = most >= 1 and len(waited) >= FEWEST_FULL and np.mean(waited) >= FULL_SHARE
    full = full and (
        np.median(longer) >= LONG_CALL
        or (most >= DEEP_QUEUE * calibrated.QUEUE_ITEMS.whole and np.median(soon) >= SOON_CALL)
    )
    return most if full else max(calibrated.QUEUE_ITEMS.whole, most + 1)
