"""GPU work that was queued when the recording began: it runs in the window but was launched before it.

Its launches were not recorded, and so not what it waited for. In the loop that the window is replayed as, it is what
the round before leaves running: the last work of its stream.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuprof.calibration import latency as latency_calibrated
from gpuprof.replay.build.latencies import LATER_REASON_NS, usual
from gpuprof.replay.graph import LAUNCH, NEVER, STREAM, Graph, edges_of
from gpuprof.tracefile.trace import I64, Mask


def carried_over(graph: Graph) -> Graph:
    """The graph in which such work takes no time: its stream is free, in the round that was recorded, when it had
    ended, and in later ones when the round before has. Replays as before.

    The first launched work of a stream that began when the queued work had ended, long after its own launch, waited for
    the stream.
    """
    lost, last = _queued(graph)
    if not lost.any():
        return graph
    edges, target = graph.edges, graph.edges.target
    lag = edges.lag_ns.copy()
    latency = usual(lag, (edges.kind == LAUNCH) & (lag < LATER_REASON_NS), latency_calibrated.LAUNCH_NS.value)
    before = graph.before_ns.copy()
    ended = np.full(len(graph), np.nan)
    np.fmax.at(ended, last[lost], graph.recorded_end_ns[lost])
    ended = np.where(before > NEVER, np.maximum(ended, before), ended)  # what was queued, but not recorded, ran later
    twins = np.flatnonzero(~np.isnan(ended))
    before[twins] = ended[twins]
    source = _past(edges.source, target, edges.kind == STREAM, lost)
    passed = np.flatnonzero((source != edges.source) & (source < target))
    gap = graph.recorded_start_ns[target[passed]] - graph.recorded_end_ns[source[passed]]
    lag[passed] = np.minimum(lag[passed], gap)
    # Other edges from queued work (an event of it): it now ends with the last of its stream.
    other = lost[source]
    lag[other] -= ended[last[source[other]]] - graph.recorded_end_ns[source[other]]
    source = np.where(other, last[source], source)
    wraps = np.flatnonzero((edges.kind == STREAM) & ~lost[target] & (source >= target) & ~np.isnan(ended[source]))
    since = graph.recorded_start_ns[target[wraps]] - ended[source[wraps]]
    launch = np.full(len(graph), -1)
    launch[target[edges.kind == LAUNCH]] = np.flatnonzero(edges.kind == LAUNCH)
    of = launch[target[wraps]]
    late = (of >= 0) & (since - latency_calibrated.GAP_NS.value < lag[of] - latency)
    lag[wraps] = np.where(late, since, np.minimum(since, latency_calibrated.GAP_NS.value))
    lag[of[late]] = np.minimum(lag[of[late]], latency)
    # Other edges from the previous round (a synchronisation, room in the queue) cannot have held anything up longer
    # than recorded.
    others = np.flatnonzero((edges.kind != STREAM) & ~lost[target] & (source >= target) & ~np.isnan(ended[source]))
    begun = np.where(graph.waits, graph.recorded_end_ns, graph.recorded_start_ns)[target[others]]
    lag[others] = np.minimum(lag[others], begun - ended[source[others]])
    keep = ~lost[target]
    gone = np.flatnonzero(lost)
    columns = (
        np.concatenate([target[keep], gone]),
        np.concatenate([source[keep], last[gone]]),
        np.concatenate([lag[keep], np.zeros(len(gone))]),
        np.concatenate([edges.from_start[keep], np.zeros(len(gone), bool)]),
        np.concatenate([edges.kind[keep], np.full(len(gone), STREAM, np.uint8)]),
    )
    duration = np.where(lost, 0.0, graph.duration_ns)
    return replace(graph, duration_ns=duration, edges=edges_of(len(graph), *columns), before_ns=before)


def _queued(graph: Graph) -> tuple[Mask, I64]:
    """Nodes of work whose launch was not recorded and that runs before all launched work of its stream, and for these
    the last node of that stream that is not."""
    gpu = graph.timeline.trace.gpu
    nodes = np.flatnonzero(graph.on_gpu)
    rows = graph.gpu_row[nodes]
    lost, last = np.zeros(len(graph), bool), np.full(len(graph), -1, np.int64)
    pairs = np.stack([gpu.device[rows].astype(np.int64), gpu.stream[rows]], axis=1)
    _, stream = np.unique(pairs, axis=0, return_inverse=True)
    for one in range(int(stream.max(initial=-1)) + 1):
        mine = nodes[stream.reshape(-1) == one]
        launched = mine[graph.call[mine] >= 0]
        if not len(launched) or len(launched) == len(mine):
            continue
        queued = mine[
            (graph.call[mine] < 0) & (graph.recorded_start_ns[mine] < graph.recorded_start_ns[launched].min())
        ]
        lost[queued], last[queued] = True, np.setdiff1d(mine, queued)[-1]
    return lost, last


def _past(source: I64, target: I64, stream: Mask, lost: Mask) -> I64:
    """The source of every stream edge, with the queued work before it skipped."""
    previous = np.full(len(lost), -1, np.int64)
    previous[target[stream]] = source[stream]
    result = source.copy()
    skip = np.flatnonzero(stream & lost[source] & ~lost[target])
    while len(skip):
        result[skip] = previous[result[skip]]
        skip = skip[lost[result[skip]]]
    return result
