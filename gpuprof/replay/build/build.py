"""From a timeline to the graph of its window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuprof.replay.build.anchors import anchors
from gpuprof.replay.build.calls import calls_of
from gpuprof.replay.build.cpu_lanes import Pieces, cut_lanes
from gpuprof.replay.build.edge_list import EdgeList, Nodes, columns, handover_edges, lane_edges
from gpuprof.replay.build.launch_times import copy_own_ns, own_begun
from gpuprof.replay.build.queues import QueueEdges, queue_edges
from gpuprof.replay.build.silence import with_silent_end
from gpuprof.replay.build.waits import SyncEdges, event_edges, sync_edges
from gpuprof.replay.build.work import GpuWork, place_work
from gpuprof.replay.build.work_edges import work_edges
from gpuprof.replay.graph import (
    COMMUNICATION,
    COPY,
    DEVICE,
    HOST,
    INPUT,
    LANE,
    NEVER,
    NOTHING,
    QUEUE,
    STREAM,
    SYNC,
    TRANSFER,
    Graph,
    edges_of,
)
from gpuprof.timeline.devices import COMMUNICATE
from gpuprof.timeline.phases import DATA
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import F64, MEMCPY, U8


def build(timeline: Timeline) -> Graph:
    """The window as a graph that reproduces the recorded times when it is simulated unchanged.

    Host threads that record nothing while another works for them wait for it; calls that waited are split into their
    own cost and the wait; every kernel or copy waits for its launch, for its stream and for events.
    """
    pieces, handovers = cut_lanes(timeline)
    calls = calls_of(timeline)
    work = place_work(timeline, pieces, calls)
    syncs, events = sync_edges(pieces, work, calls), event_edges(work, calls)
    syncs = with_silent_end(syncs, timeline, pieces, work)
    queue = queue_edges(work, calls)
    work = replace(work, carried_ns=queue.carried_ns)
    begun = own_begun(calls, work, queue)
    copy_own = copy_own_ns(work, begun)
    nodes = Nodes(pieces, work, syncs.piece)
    edges = (
        *lane_edges(nodes, pieces),
        *handover_edges(nodes, handovers),
        *work_edges(nodes, pieces, work, begun, copy_own, events),
        *anchors(nodes, pieces, work, handovers, timeline.main_thread),
        EdgeList(QUEUE, nodes.piece(work.piece[queue.work]), nodes.work(queue.source), queue.lag_ns),
        _syncs(nodes, syncs),
        _copies(nodes, work),
    )
    return _assemble(timeline, pieces, work, nodes, edges, _durations(pieces, work, syncs, queue, copy_own), queue)


def _durations(pieces: Pieces, work: GpuWork, syncs: SyncEdges, queue: QueueEdges, copy_own: F64) -> F64:
    """Durations of the nodes, ns: pieces without their waits; a lane that waits for another takes no time of its
    own."""
    duration = np.where(pieces.waits, 0, pieces.end_ns - pieces.start_ns).astype(np.float64)
    for piece, own in syncs.own_of_piece.items():
        duration[piece] = own
    blocked = np.flatnonzero(work.blocks)
    duration[work.piece[blocked]] = copy_own[blocked]
    waited = np.flatnonzero(~np.isnan(queue.own_ns))
    duration[work.piece[queue.work[waited]]] = queue.own_ns[waited]
    return duration


def _syncs(nodes: Nodes, syncs: SyncEdges) -> EdgeList:
    """Edges from GPU work to the calls that wait for it."""
    # If the launch of a stream's last work was not recorded, it is unknown whether that work belongs to this round.
    known = ~syncs.wrapped | (nodes.work(syncs.source) > nodes.wait(syncs.piece))
    return EdgeList(SYNC, nodes.wait(syncs.piece[known]), nodes.work(syncs.source[known]), syncs.lag_ns[known])


def _copies(nodes: Nodes, work: GpuWork) -> EdgeList:
    """Edges from copies to calls that return only when the copy is done."""
    blocked = np.flatnonzero(work.blocks)
    lag = work.launched_ns[blocked] - work.end_ns[blocked]
    return EdgeList(COPY, nodes.wait(work.piece[blocked]), nodes.work(blocked), lag)


def _assemble(
    timeline: Timeline,
    pieces: Pieces,
    work: GpuWork,
    numbers: Nodes,
    edges: tuple[EdgeList, ...],
    duration: F64,
    queue: QueueEdges,
) -> Graph:
    trace, low = timeline.trace, timeline.window[0]
    waiting = numbers.waiting
    target, source, lag, from_start, kind = columns(edges)

    def nodes(of_pieces, of_work, of_waits) -> np.ndarray:
        return np.concatenate([of_pieces, of_work, of_waits])[numbers.order]

    start, end = pieces.start_ns.astype(np.float64), pieces.end_ns.astype(np.float64)
    host = np.full(len(pieces), HOST, np.uint8)
    # What a user's own thread does between its ops is unknown; autograd's prepares its next op.
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
    steps = timeline.steps.end_ns - low
    before = np.full(len(numbers), NEVER)
    main = np.flatnonzero(pieces.lane == timeline.main_thread)
    if len(main):
        before[numbers.end(main[-1:])] = 0.0
    for s in range(len(work.streams)):
        before[numbers.work(np.flatnonzero(work.stream == s)[-1:])] = work.carried_ns[s]
    wrapped = (queue.source >= queue.work) & np.isfinite(queue.freed_ns)
    seen = numbers.work(queue.source[wrapped])
    before[seen] = queue.freed_ns[wrapped]
    started = nodes(start, work.start_ns, start[waiting])
    # Other edges from these nodes of the previous round cannot have held their targets up longer than recorded.
    looks = np.flatnonzero((source >= target) & (kind != QUEUE) & ~from_start & np.isin(source, seen))
    begun = np.where(
        nodes(pieces.waits, np.zeros(len(work), bool), np.ones(len(waiting), bool)),
        nodes(end, work.end_ns, end[waiting]),
        started,
    )[target[looks]]
    lag[looks] = np.minimum(lag[looks], begun - before[source[looks]])
    # If only the previous round determines when a stream or a thread begins, that round ended at the matching moment,
    # or where that moment is known, the distance from it is the recorded one.
    rooted = np.zeros(len(numbers), bool)
    rooted[target[source < target]] = True
    alone = np.isin(kind, (LANE, STREAM)) & ~rooted[target]
    unknown = before[source] == NEVER
    wraps, apart = np.flatnonzero(alone & unknown), np.flatnonzero(alone & ~unknown)
    before[source[wraps]] = started[target[wraps]] - lag[wraps]
    lag[apart] = started[target[apart]] - before[source[apart]]
    last = len(timeline.steps.end_ns) - 1
    step_end = (
        numbers.end(pieces.before(np.full(len(steps), timeline.main_thread, np.int32), steps))
        if len(main)
        else np.full(len(steps) if len(numbers) else 0, len(numbers) - 1)
    )
    return Graph(
        timeline=timeline,
        duration_ns=nodes(duration, work.end_ns - work.start_ns, np.zeros(len(waiting))),
        resource=nodes(host, resource, np.full(len(waiting), NOTHING, np.uint8)),
        edges=edges_of(len(numbers), target, source, lag, from_start, kind),
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
    phase = timeline.host.at(pieces.lane, pieces.start_ns + timeline.window[0])
    inside = np.flatnonzero(pieces.scope >= 0)
    scope = pieces.scope[inside]
    telling = (timeline.trace.ops.kind[scope] == 0) | timeline.host.named[scope]
    phase[inside[telling]] = timeline.host.op[scope[telling]]
    return phase
