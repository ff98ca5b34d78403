"""From a timeline to the graph of its window."""

from __future__ import annotations

import numpy as np

from gpuprof.replay.calls import call_kinds
from gpuprof.replay.graph import (
    ANCHOR,
    COMMUNICATION,
    COPY,
    DEVICE,
    EVENT,
    F64,
    GRAPH,
    HANDOVER,
    HOST,
    INPUT,
    LANE,
    LAUNCH,
    NEVER,
    NOTHING,
    QUEUE,
    STREAM,
    SYNC,
    TRANSFER,
    Graph,
    Mask,
    edges_of,
)
from gpuprof.replay.lags import CLEAR_NS, GAP_NS, LATENCY_NS, bind, prompt, usual
from gpuprof.replay.lanes import Pieces, cut_lanes
from gpuprof.replay.queues import QueueEdges, queue_edges
from gpuprof.replay.waits import event_edges, near_edges, sync_edges
from gpuprof.replay.work import Work, copy_own_ns, place_work
from gpuprof.timeline.devices import COMMUNICATE
from gpuprof.timeline.phases import DATA
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.model import I64, MEMCPY, U8

EVENT_NS = 2_000.0
"""From the end of work on one stream to the start of work on another that waits for it, where the recording shows no
clear case (H200: 1.5 to 2.5 µs)."""
_PIECE, _WORK, _WAIT = range(3)


def build(timeline: Timeline) -> Graph:
    """The window as a graph that, simulated as it is, gives the recorded times.

    Host threads that record nothing while another works for them wait for it; calls that waited are parted into their
    own cost and the wait; every piece of GPU work waits for its launch, for its stream and for events.
    """
    trace, (low, _) = timeline.trace, timeline.window
    pieces, handovers = cut_lanes(timeline)
    kinds = call_kinds(trace, timeline.links.call)
    work = place_work(timeline, pieces, kinds)
    syncs = sync_edges(timeline, pieces, work, kinds)
    queue = queue_edges(timeline, work)
    begun = _own_begun(timeline, work, queue)
    copy_own = copy_own_ns(timeline, work, begun)
    edges = _Edges(pieces, work, syncs.piece)
    duration = _durations(pieces, work, low)
    for piece, own in syncs.own_of_piece.items():
        duration[piece] = own
    blocked = np.flatnonzero(work.blocks)
    duration[work.piece[blocked]] = copy_own[blocked]
    waited = np.flatnonzero(~np.isnan(queue.own_ns))
    duration[work.piece[queue.work[waited]]] = queue.own_ns[waited]

    _host_edges(edges, pieces, handovers, timeline)
    _work_edges(edges, pieces, work, begun, copy_own, timeline, event_edges(timeline, work, kinds))
    edges.add(QUEUE, edges.piece(work.piece[queue.work]), edges.work(queue.source), queue.lag_ns)
    # Of a stream whose last work was not seen launched nothing says whether that is this round's.
    known = ~syncs.wrapped | (edges.work(syncs.source) > edges.wait(syncs.piece))
    edges.add(SYNC, edges.wait(syncs.piece[known]), edges.work(syncs.source[known]), syncs.lag_ns[known])
    edges.add(
        COPY,
        edges.wait(work.piece[blocked]),
        edges.work(blocked),
        trace.calls.end_ns[work.call[blocked]] - low - work.end_ns[blocked] if len(blocked) else np.empty(0),
    )
    return _assemble(timeline, pieces, work, edges, duration)


class _Edges:
    """Numbers the nodes and collects the edges between them.

    A piece of host work comes first, then what it launches, then the wait that ends it: an order that all edges
    follow, because launches, waits and handovers go forward in host time.
    """

    def __init__(self, pieces: Pieces, work: Work, sync_pieces: I64) -> None:
        waiting = np.unique(np.concatenate([sync_pieces, work.piece[work.blocks]]))
        moment = np.concatenate(
            [
                # A lane that stands still does so until others have done what stands between.
                np.where(pieces.waits, pieces.end_ns, pieces.start_ns),
                work.moment_ns,
                pieces.start_ns[waiting],
            ]
        )
        kind = np.concatenate([np.full(len(pieces), _PIECE), np.full(len(work), _WORK), np.full(len(waiting), _WAIT)])
        self.order = np.lexsort((np.arange(len(kind)), kind, moment))
        number = np.empty(len(kind), np.int64)
        number[self.order] = np.arange(len(kind))
        self._piece, self._work = number[: len(pieces)], number[len(pieces) : len(pieces) + len(work)]
        self._wait = np.full(len(pieces), -1, np.int64)
        self._wait[waiting] = number[len(pieces) + len(work) :]
        self.nodes, self.waiting = len(kind), waiting
        self._columns: list[tuple[np.ndarray, ...]] = []

    def piece(self, index: I64) -> I64:
        """The node of a piece's own work."""
        return self._piece[index]

    def end(self, index: I64) -> I64:
        """The node with which a piece ends: its wait, where it has one."""
        return np.where(self._wait[index] >= 0, self._wait[index], self._piece[index])

    def wait(self, index: I64) -> I64:
        return self._wait[index]

    def work(self, index: I64) -> I64:
        return self._work[index]

    def add(
        self, kind: int, target: I64, source: I64, lag_ns: F64 | I64 | float = 0.0, from_start: bool | Mask = False
    ) -> None:
        shape = len(target)
        self._columns.append(
            (
                target,
                source,
                np.broadcast_to(np.asarray(lag_ns, np.float64), shape),
                np.broadcast_to(np.asarray(from_start, bool), shape),
                np.full(shape, kind, np.uint8),
            )
        )

    def columns(self) -> tuple[I64, I64, F64, np.ndarray, U8]:
        target, source, lag, from_start, kind = (np.concatenate(column) for column in zip(*self._columns, strict=True))
        return target, source, lag, from_start, kind


def _durations(pieces: Pieces, work: Work, low: int) -> F64:
    """Of pieces, as long as they were recorded; a lane that stands still takes no time of its own."""
    return np.where(pieces.waits, 0, pieces.end_ns - pieces.start_ns).astype(np.float64)


def _host_edges(edges: _Edges, pieces: Pieces, handovers: list[tuple[int, int, int]], timeline: Timeline) -> None:
    following = np.flatnonzero(~pieces.first)
    edges.add(LANE, edges.piece(following), edges.end(following - 1))
    edges.add(LANE, edges.wait(edges.waiting), edges.piece(edges.waiting))
    first = np.flatnonzero(pieces.first)
    last = np.append(first[1:], len(pieces)) - 1 if len(first) else first
    edges.add(LANE, edges.piece(first), edges.end(last))
    if handovers:
        source, target, lag = (np.array(column, np.int64) for column in zip(*handovers, strict=True))
        edges.add(HANDOVER, edges.piece(target), edges.end(source), lag)
    # A thread that nobody hands over to begins where the main one was when it began.
    called = {int(pieces.lane[target]) for _, target, _ in handovers}
    free = np.array([i for i in first if pieces.lane[i] not in {*called, timeline.main_thread}], np.int64)
    if len(free) and timeline.main_thread >= 0:
        at = pieces.active(timeline.main_thread, pieces.start_ns[free])
        free, at = free[at >= 0], at[at >= 0]
        edges.add(ANCHOR, edges.piece(free), edges.piece(at), pieces.start_ns[free] - pieces.start_ns[at], True)


def _own_begun(timeline: Timeline, work: Work, queue: QueueEdges) -> F64:
    """When the launching call of each work began what it does itself: after its wait for room on its stream."""
    calls = timeline.trace.calls
    begun = np.where(work.piece >= 0, calls.start_ns[work.call] - timeline.window[0] if len(calls) else 0, 0.0)
    now = queue.source < queue.work
    np.maximum.at(begun, queue.work[now], work.end_ns[queue.source[now]])
    return begun


def _work_edges(
    edges: _Edges, pieces: Pieces, work: Work, begun: F64, copy_own: F64, timeline: Timeline, events: tuple[I64, I64]
) -> None:
    """Launch, stream, event and graph edges of all GPU work, each with its lag.

    `begun`: when each launching call began what it does itself, `copy_own` what that is for copies that block.
    """
    if not len(work):
        return
    carried = work.carried_ns[work.stream]
    has_previous = work.previous >= 0
    free = np.where(has_previous, work.end_ns[work.previous], np.where(carried > NEVER, carried, np.nan))
    launched = np.where(work.head, work.launched_ns, np.nan)
    blocked = np.flatnonzero(work.blocks)
    launched[blocked] = (begun + copy_own)[blocked]
    parent = _graph_parent(work)
    waiter, source = events
    awaited = np.full(len(work), np.nan)
    np.fmax.at(awaited, waiter, work.end_ns[source])
    observed = np.stack([work.start_ns - launched, work.start_ns - free, work.start_ns - awaited], axis=1)
    idle = np.isnan(observed[:, 1]) | (observed[:, 1] > CLEAR_NS)
    no_event = np.isnan(awaited)
    latency = np.full(len(work), LATENCY_NS)
    soon = prompt(observed[:, 0], work.head & idle & no_event)
    every = usual(observed[:, 0], soon, LATENCY_NS)
    for kind in np.unique(work.kind).tolist():
        mine = work.kind == kind
        latency[mine] = usual(observed[:, 0], mine & soon, every)
    gap = np.full(len(work), GAP_NS)
    queued = ~np.isnan(free) & (launched + CLEAR_NS < free) & no_event & (observed[:, 1] < CLEAR_NS)
    every = usual(observed[:, 1], queued, GAP_NS)
    for stream in range(len(work.streams)):
        mine = work.stream == stream
        gap[mine] = usual(observed[:, 1], queued & mine, every)
    late = np.fmin(observed[:, 0], observed[:, 1])
    event = usual(observed[:, 2], ~no_event & (late > CLEAR_NS) & (observed[:, 2] < CLEAR_NS), EVENT_NS)
    usual_ns = np.stack([latency, gap, np.full(len(work), event)], axis=1)
    excess = np.nanmin(np.where(np.isnan(observed), np.inf, observed - usual_ns), axis=1)
    more = near_edges(
        work,
        np.flatnonzero(np.isfinite(excess) & (excess > event) & work.head),
        excess[np.isfinite(excess) & (excess > event) & work.head],
    )
    if len(more[0]):
        waiter, source = np.concatenate([waiter, more[0]]), np.concatenate([source, more[1]])
        np.fmax.at(awaited, more[0], work.end_ns[more[1]])
        observed[:, 2] = work.start_ns - awaited
    in_graph = parent >= 0
    observed[in_graph] = np.nan
    lags = bind(observed, usual_ns)
    lags[in_graph, 1] = np.minimum(work.start_ns - free, gap)[in_graph]

    rows = np.flatnonzero(~np.isnan(launched) & work.head)
    # Work may begin before its call returns, when that was held up: no faster call can then bring it before its begin.
    since = work.start_ns[rows] - (pieces.start_ns[work.piece[rows]] - timeline.window[0])
    early = (observed[rows, 0] < 0) & (since >= 0) & (begun[rows] <= work.start_ns[rows] - since)
    lag = np.where(early, since, lags[rows, 0])
    edges.add(LAUNCH, edges.work(rows), edges.piece(work.piece[rows]), lag, early)
    rows = np.flatnonzero(has_previous & ~np.isnan(lags[:, 1]))
    edges.add(STREAM, edges.work(rows), edges.work(work.previous[rows]), lags[rows, 1])
    # The first work of a stream follows the last one of the round before.
    first = np.flatnonzero(~has_previous)
    last = np.array([np.flatnonzero(work.stream == s)[-1] for s in work.stream[first]], np.int64)
    lag = np.where(np.isnan(lags[first, 1]), gap[first], lags[first, 1])
    edges.add(STREAM, edges.work(first), edges.work(last), np.where(in_graph[first], 0, lag))
    edges.add(
        EVENT, edges.work(waiter), edges.work(source), _event_lags(work, waiter, source, awaited, lags[:, 2], event)
    )
    rows = np.flatnonzero(in_graph)
    edges.add(GRAPH, edges.work(rows), edges.work(parent[rows]), work.start_ns[rows] - work.end_ns[parent[rows]])
    _anchor(edges, pieces, work, timeline, free)


def _event_lags(work: Work, waiter: I64, source: I64, awaited: F64, lag: F64, event: float) -> F64:
    """The edge from the latest of the awaited carries the lag; the others the usual one at most."""
    latest = work.end_ns[source] == awaited[waiter]
    return np.where(latest, lag[waiter], np.minimum(work.start_ns[waiter] - work.end_ns[source], event))


def _graph_parent(work: Work) -> I64:
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


def _anchor(edges: _Edges, pieces: Pieces, work: Work, timeline: Timeline, free: F64) -> None:
    """Work whose launch was not recorded: what follows at once on its stream was queued, the rest began when the host
    was where it was."""
    lost = np.flatnonzero(work.piece < 0)
    lost = lost[~(work.start_ns[lost] - free[lost] < CLEAR_NS)]
    if not len(lost):
        return
    if timeline.main_thread < 0 or not len(pieces):
        return
    at = pieces.active(timeline.main_thread, work.moment_ns[lost])
    lost, at = lost[at >= 0], at[at >= 0]
    since = work.start_ns[lost] - (pieces.start_ns[at] - timeline.window[0])
    edges.add(ANCHOR, edges.work(lost), edges.piece(at), since, True)


def _assemble(timeline: Timeline, pieces: Pieces, work: Work, edges: _Edges, duration: F64) -> Graph:
    trace, (low, _) = timeline.trace, timeline.window
    waiting = edges.waiting
    target, source, lag, from_start, kind = edges.columns()

    def nodes(of_pieces, of_work, of_waits) -> np.ndarray:
        return np.concatenate([of_pieces, of_work, of_waits])[edges.order]

    start, end = (pieces.start_ns - low).astype(np.float64), (pieces.end_ns - low).astype(np.float64)
    host = np.full(len(pieces), HOST, np.uint8)
    # What a thread of one's own does between its ops is not known; autograd's prepares its next op.
    working = [timeline.main_thread, *timeline.host.autograd]
    host[(pieces.scope < 0) & (pieces.call < 0) & ~np.isin(pieces.lane, working)] = NOTHING
    phase = _piece_phases(timeline, pieces)
    host[phase == DATA] = INPUT
    host[work.piece[work.blocks]] = TRANSFER
    host[pieces.waits] = NOTHING
    resource = np.full(len(work), DEVICE, np.uint8)
    resource[timeline.kind[work.row] == COMMUNICATE] = COMMUNICATION
    between = trace.rows_named(trace.gpu.name, lambda text: "HtoD" in text or "DtoH" in text or "PtoP" in text)
    resource[(work.kind == MEMCPY) & between[work.row]] = TRANSFER
    steps = timeline.steps.end_ns
    before = np.full(edges.nodes, NEVER)
    main = np.flatnonzero(pieces.lane == timeline.main_thread)
    if len(main):
        before[edges.end(main[-1:])] = 0.0
    for s in range(len(work.streams)):
        before[edges.work(np.flatnonzero(work.stream == s)[-1:])] = work.carried_ns[s]
    started = nodes(start, work.start_ns, start[waiting])
    # Where nothing but the round before says when a stream or a thread begins, that one ended just so.
    rooted = np.zeros(edges.nodes, bool)
    rooted[target[source < target]] = True
    wraps = np.flatnonzero(np.isin(kind, (LANE, STREAM)) & ~rooted[target] & (before[source] == NEVER))
    before[source[wraps]] = started[target[wraps]] - lag[wraps]
    own = duration.copy()
    last = len(timeline.steps.end_ns) - 1
    step_end = (
        edges.end(pieces.before(np.full(len(steps), timeline.main_thread, np.int32), steps))
        if len(main)
        else np.full(len(steps) if edges.nodes else 0, edges.nodes - 1)
    )
    return Graph(
        timeline=timeline,
        duration_ns=nodes(own, work.end_ns - work.start_ns, np.zeros(len(waiting))),
        resource=nodes(host, resource, np.full(len(waiting), NOTHING, np.uint8)),
        edges=edges_of(edges.nodes, target, source, lag, from_start, kind),
        before_ns=before,
        recorded_start_ns=started,
        recorded_end_ns=nodes(end, work.end_ns, end[waiting]),
        lane=nodes(pieces.lane, np.full(len(work), -1, np.int32), pieces.lane[waiting]),
        scope=nodes(pieces.scope, timeline.links.scope[work.row], pieces.scope[waiting]),
        call=nodes(pieces.call, work.call, pieces.call[waiting]),
        gpu_row=nodes(np.full(len(pieces), -1), work.row, np.full(len(waiting), -1)),
        waits=nodes(pieces.waits, np.zeros(len(work), bool), np.ones(len(waiting), bool)),
        phase=nodes(phase, timeline.phase[work.row], phase[waiting]),
        step=nodes(*(np.minimum(np.searchsorted(steps, t, side="right"), last) for t in (
            pieces.start_ns, work.moment_ns, pieces.start_ns[waiting]))),
        step_end=step_end,
    )  # fmt: skip


def _piece_phases(timeline: Timeline, pieces: Pieces) -> U8:
    """Phase of every piece: that of its op, else of its moment."""
    phase = timeline.host.at(pieces.lane, pieces.start_ns)
    inside = np.flatnonzero(pieces.scope >= 0)
    scope = pieces.scope[inside]
    telling = (timeline.trace.ops.kind[scope] == 0) | timeline.host.named[scope]
    phase[inside[telling]] = timeline.host.op[scope[telling]]
    return phase
