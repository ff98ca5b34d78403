"""What every kernel or copy waits for: its launch, the work before it on its stream, and events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.calibration import latency as latency_calibrated
from gpuprof.replay.build.cpu_lanes import Pieces
from gpuprof.replay.build.edge_list import EdgeList, Nodes
from gpuprof.replay.build.latencies import LATER_REASON_NS, bind, prompt, usual
from gpuprof.replay.build.work import GpuWork
from gpuprof.replay.graph import EVENT, GRAPH, LAUNCH, NEVER, STREAM
from gpuprof.tracefile.trace import F64, I64
from gpuprof.units import Assumed, Share, WholeNs

_BY_LAUNCH, _BY_STREAM, _BY_EVENT = range(3)
"""Columns of lags: the three reasons that the start of GPU work waits for."""
WAITED_FOR_NS: Assumed[WholeNs] = 5_000
"""Work that starts at most this long, ns, after the end of other work, and late for every known reason, waited for that
work."""
WAITED_FOR_SHARE: Assumed[Share] = 0.01
"""The same as a share of how late the work starts, where that is longer: after a wait of milliseconds some GPUs take
tens of microseconds from the end of one stream's work to the start of another's."""


@dataclass(frozen=True, slots=True)
class _Starts:
    """Per kernel or copy, when each of its reasons allowed it to start, and the lag of its start after that.

    Times are ns from the window's start, NaN where there is no such reason.
    """

    launched_ns: F64
    free_ns: F64
    """When the work before it on its stream ended."""
    awaited_ns: F64
    """When the last of the work that it waits for by events ended."""
    waiter: I64
    source: I64
    """Waits for events: the work that waits, and the work that it waits for."""
    parent: I64
    """The node of the same CUDA graph that it follows, or -1."""
    lag_ns: F64
    """[work, reasons]"""
    gap_ns: F64
    """The usual lag after the work before it on its stream."""
    event_ns: float
    """The usual lag after an event."""


def work_edges(
    nodes: Nodes, pieces: Pieces, work: GpuWork, begun: F64, copy_own: F64, events: tuple[I64, I64]
) -> tuple[EdgeList, ...]:
    """All edges into GPU work whose launch was recorded, and between kernels and copies.

    `begun`: when each launching call began its own work, and `copy_own` how long that takes for copies that block;
    `events`: the work that waits for events, and the work that it waits for.
    """
    if not len(work):
        return ()
    starts = _starts(work, begun, copy_own, events)
    return (
        _launches(nodes, pieces, work, begun, starts),
        *_streams(nodes, work, starts),
        _events(nodes, work, starts),
        _graphs(nodes, work, starts),
    )


def _starts(work: GpuWork, begun: F64, copy_own: F64, events: tuple[I64, I64]) -> _Starts:
    """Why each kernel or copy started when it did."""
    launched, free, parent = _launched(work, begun, copy_own), _free(work), _graph_parent(work)
    waiter, source = events
    awaited = np.full(len(work), np.nan)
    np.fmax.at(awaited, waiter, work.end_ns[source])
    observed = np.stack([work.start_ns - launched, work.start_ns - free, work.start_ns - awaited], axis=1)
    gap, event = _usual_gaps(work, launched, free, observed), _usual_event(observed)
    usual_ns = np.stack([_usual_latencies(work, observed), gap, np.full(len(work), event)], axis=1)
    excess = np.nanmin(np.where(np.isnan(observed), np.inf, observed - usual_ns), axis=1)
    late = np.isfinite(excess) & (excess > event) & work.head
    near_waiter, near_source = _near(work, np.flatnonzero(late), excess[late])
    if len(near_waiter):
        waiter, source = np.concatenate([waiter, near_waiter]), np.concatenate([source, near_source])
        np.fmax.at(awaited, near_waiter, work.end_ns[near_source])
        observed[:, _BY_EVENT] = work.start_ns - awaited
    in_graph = parent >= 0
    observed[in_graph] = np.nan
    lags = bind(observed, usual_ns)
    lags[in_graph, _BY_STREAM] = np.minimum(work.start_ns - free, gap)[in_graph]
    return _Starts(launched, free, awaited, waiter, source, parent, lags, gap, event)


def _near(work: GpuWork, late: np.ndarray, late_ns: F64) -> tuple[I64, I64]:
    """(work, work on another stream of its device) for starts that nothing recorded explains: the other work ends just
    before.

    `late`: indices of work that started `late_ns` after everything it is known to wait for.
    """
    if not len(late) or len(work.streams) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    device = np.array([d for d, _ in work.streams])[work.stream]
    order = np.argsort(work.end_ns, kind="stable")
    k = np.searchsorted(work.end_ns[order], work.start_ns[late], side="right") - 1
    source = order[np.maximum(k, 0)]
    within = np.minimum(np.maximum(WAITED_FOR_NS, WAITED_FOR_SHARE * late_ns), late_ns)
    good = (k >= 0) & (work.start_ns[late] - work.end_ns[source] < within)
    good &= (work.stream[source] != work.stream[late]) & (device[source] == device[late]) & (source < late)
    return late[good], source[good]


def _launched(work: GpuWork, begun: F64, copy_own: F64) -> F64:
    """When the launch of each work was done; NaN where not recorded, and for further nodes of a CUDA graph."""
    launched = np.where(work.head, work.launched_ns, np.nan)
    launched[work.blocks] = (begun + copy_own)[work.blocks]
    return launched


def _free(work: GpuWork) -> F64:
    """When the stream of each kernel or copy was free for it; NaN if nothing came before."""
    free = work.free_ns
    return np.where(free > NEVER, free, np.nan)


def _usual_latencies(work: GpuWork, observed: F64) -> F64:
    """Per work the usual time from a launch to its start on an idle stream, for each kind of work."""
    idle = np.isnan(observed[:, _BY_STREAM]) | (observed[:, _BY_STREAM] > LATER_REASON_NS)
    soon = prompt(observed[:, _BY_LAUNCH], work.head & idle & np.isnan(observed[:, _BY_EVENT]))
    every = usual(observed[:, _BY_LAUNCH], soon, latency_calibrated.LAUNCH_NS.value)
    latency = np.full(len(work), latency_calibrated.LAUNCH_NS.value)
    for kind in np.unique(work.kind).tolist():
        mine = work.kind == kind
        latency[mine] = usual(observed[:, _BY_LAUNCH], mine & soon, every)
    return latency


def _usual_gaps(work: GpuWork, launched: F64, free: F64, observed: F64) -> F64:
    """Per work the usual time from the end of the work before, for each stream."""
    queued = ~np.isnan(free) & (launched + LATER_REASON_NS < free)
    queued &= np.isnan(observed[:, _BY_EVENT]) & (observed[:, _BY_STREAM] < LATER_REASON_NS)
    every = usual(observed[:, _BY_STREAM], queued, latency_calibrated.GAP_NS.value)
    gap = np.full(len(work), latency_calibrated.GAP_NS.value)
    for stream in range(len(work.streams)):
        mine = work.stream == stream
        gap[mine] = usual(observed[:, _BY_STREAM], queued & mine, every)
    return gap


def _usual_event(observed: F64) -> float:
    """The usual time from the end of work that is waited for by an event."""
    late = np.fmin(observed[:, _BY_LAUNCH], observed[:, _BY_STREAM])
    lag = observed[:, _BY_EVENT]
    return usual(
        lag, ~np.isnan(lag) & (late > LATER_REASON_NS) & (lag < LATER_REASON_NS), latency_calibrated.EVENT_NS.value
    )


def _graph_parent(work: GpuWork) -> I64:
    """For further nodes of a CUDA graph: the node of the same launch that ended last before it began.

    The dependencies inside a graph are not recorded; a node follows what had just ended.
    """
    parent = np.full(len(work), -1, np.int64)
    others = np.flatnonzero(~work.head & (work.piece >= 0))
    for call in np.unique(work.call[others]).tolist():
        rows = np.flatnonzero(work.call == call)
        rows = rows[np.argsort(work.start_ns[rows], kind="stable")]
        by_end = rows[np.argsort(work.end_ns[rows], kind="stable")]
        k = np.searchsorted(work.end_ns[by_end], work.start_ns[rows[1:]], side="right") - 1
        parent[rows[1:]] = np.where(k >= 0, by_end[np.maximum(k, 0)], rows[0])
    return parent


def _launches(nodes: Nodes, pieces: Pieces, work: GpuWork, begun: F64, starts: _Starts) -> EdgeList:
    """Edges from the piece of CPU time that launches it."""
    rows = np.flatnonzero(~np.isnan(starts.launched_ns) & work.head)
    # Work may begin before its call returns, if the call was held up: then a faster call does not make it start
    # earlier.
    since = work.start_ns[rows] - pieces.start_ns[work.piece[rows]]
    early = (work.start_ns[rows] < starts.launched_ns[rows]) & (since >= 0)
    early &= begun[rows] <= work.start_ns[rows] - since
    lag = np.where(early, since, starts.lag_ns[rows, _BY_LAUNCH])
    return EdgeList(LAUNCH, nodes.work(rows), nodes.piece(work.piece[rows]), lag, early)


def _streams(nodes: Nodes, work: GpuWork, starts: _Starts) -> tuple[EdgeList, EdgeList]:
    """Edges from the work before on the same stream; to the first of a stream from the last one of the previous
    round."""
    has_previous, lag = work.previous >= 0, starts.lag_ns[:, _BY_STREAM]
    rows = np.flatnonzero(has_previous & ~np.isnan(lag))
    first = np.flatnonzero(~has_previous)
    last = np.array([np.flatnonzero(work.stream == s)[-1] for s in work.stream[first]], np.int64)
    around = np.where(np.isnan(lag[first]), starts.gap_ns[first], lag[first])
    return (
        EdgeList(STREAM, nodes.work(rows), nodes.work(work.previous[rows]), lag[rows]),
        EdgeList(STREAM, nodes.work(first), nodes.work(last), np.where(starts.parent[first] >= 0, 0, around)),
    )


def _events(nodes: Nodes, work: GpuWork, starts: _Starts) -> EdgeList:
    """Edges from the work on other streams that it waits for.

    The edge from the latest of them carries the observed lag; the others the usual one at most.
    """
    waiter, source = starts.waiter, starts.source
    latest = work.end_ns[source] == starts.awaited_ns[waiter]
    others = np.minimum(work.start_ns[waiter] - work.end_ns[source], starts.event_ns)
    lag = np.where(latest, starts.lag_ns[waiter, _BY_EVENT], others)
    return EdgeList(EVENT, nodes.work(waiter), nodes.work(source), lag)


def _graphs(nodes: Nodes, work: GpuWork, starts: _Starts) -> EdgeList:
    """Edges from the node of the same CUDA graph that it follows."""
    rows = np.flatnonzero(starts.parent >= 0)
    parent = starts.parent[rows]
    return EdgeList(GRAPH, nodes.work(rows), nodes.work(parent), work.start_ns[rows] - work.end_ns[parent])
