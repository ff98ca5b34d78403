"""Stretches of CPU time, and the nodes of the graph that are in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.replay.graph import Graph
from gpuprof.tracefile.trace import I64, Calls, Mask, Ops

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches of CPU time, each on one thread: columns of one length, on the trace's clock."""

    thread: I64
    start_ns: I64
    end_ns: I64

    def __len__(self) -> int:
        return len(self.thread)

    @classmethod
    def of(cls, events: Ops | Calls, first: I64, last: I64 | None = None) -> Self:
        """From the beginning of each event of `first` to the end of that of `last`, of the same thread; without `last`,
        of each event alone. Both are rows of `events`."""
        ends = events.end_ns[first if last is None else last]
        return cls(events.thread[first].astype(np.int64), events.start_ns[first], ends)

    def and_also(self, more: Self) -> Self:
        """These stretches, then those."""
        pairs = ((self.thread, more.thread), (self.start_ns, more.start_ns), (self.end_ns, more.end_ns))
        return type(self)(*(np.append(one, other) for one, other in pairs))

    def some(self, which: I64 | Mask) -> Self:
        """The stretches with these indices, or of this mask."""
        return type(self)(self.thread[which], self.start_ns[which], self.end_ns[which])


def nodes_in(graph: Graph, stretches: Stretches) -> I64:
    """Per node of the graph the stretch that it is in, or was launched in; -1: none. Stretches do not overlap."""
    found = np.full(len(graph), -1, np.int64)
    for thread, own in _by_thread(stretches):
        nodes, moments = _nodes_of_thread(graph, thread)
        _place(stretches, own, nodes, moments, found)
    return found


def _nodes_of_thread(graph: Graph, thread: int) -> tuple[I64, I64]:
    """Nodes that a thread ran or launched, and when; the same for all graphs with these nodes."""
    known = graph.shared.setdefault("nodes_of_thread", {})
    if thread not in known:
        threads, moments = _moments(graph)
        nodes = np.flatnonzero(threads == thread)
        known[thread] = nodes, moments[nodes]
    return known[thread]


def _moments(graph: Graph) -> tuple[I64, I64]:
    """Per node the thread that ran or launched it, and when; -1: none is known."""
    if "moments" not in graph.shared:
        calls, low = graph.timeline.trace.calls, graph.timeline.window[0]
        thread = graph.lane.astype(np.int64)
        moment = np.round(graph.recorded_start_ns).astype(np.int64) + low
        launched = np.flatnonzero(graph.on_gpu & (graph.call >= 0))
        thread[launched] = calls.thread[graph.call[launched]]
        moment[launched] = calls.start_ns[graph.call[launched]]
        thread[graph.on_gpu & (graph.call < 0)] = -1
        graph.shared["moments"] = thread, moment
    return graph.shared["moments"]


def place(stretches: Stretches, thread: I64, moment: I64) -> I64:
    """Per moment of a thread the stretch that it is in; -1: none."""
    found = np.full(len(thread), -1, np.int64)
    for one, own in _by_thread(stretches):
        mine = np.flatnonzero(thread == one)
        _place(stretches, own, mine, moment[mine], found)
    return found


def _by_thread(stretches: Stretches) -> Iterator[tuple[int, I64]]:
    """Each thread and its stretches that take time, in order."""
    for one in np.unique(stretches.thread).tolist():
        own = np.flatnonzero((stretches.thread == one) & (stretches.end_ns > stretches.start_ns))
        if one >= 0 and len(own):
            yield one, own[np.argsort(stretches.start_ns[own])]


def _place(stretches: Stretches, own: I64, rows: I64, moments: I64, found: I64) -> None:
    """Writes to the rows of `found` in which of the stretches `own`, which are in order, their moments are."""
    at = np.searchsorted(stretches.start_ns[own], moments, side="right") - 1
    inside = (at >= 0) & (moments < stretches.end_ns[own[np.maximum(at, 0)]])
    found[rows[inside]] = own[at[inside]]
