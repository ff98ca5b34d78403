"""Splits collectives into waiting for the last rank to arrive and moving the data.

A recorded collective lasts from this rank's arrival to the end, which all ranks share: most of it can be waiting. It is
split into two nodes: the waiting, which begins when this rank is ready and lasts as long as the last peer is later than
it, and the transfer, which begins when both have arrived and the stream is free. A peer's lateness is counted from this
rank's own readiness, not from the moment its communication stream reached the collective: every collective that is
launched meanwhile meets the same late peer, which is waited for once. The lateness is the peer's surplus work over this
rank's. If the profiler's cost is removed from this rank, the peer, which recorded the same work, loses the same time:
the surplus stays. A faster CPU shortens this rank's own way to the collective, and the part of the peer's way that is
the same; the surplus, whose nature one recording cannot show, counts as communication.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import collectives as calibrated
from gpuprof.costs.hardware import find, name_of
from gpuprof.replay.graph import COMMUNICATION, NEVER, PEER, STREAM, Graph, edges_of
from gpuprof.replay.simulate import simulate, step_of
from gpuprof.replay.transform import scaled
from gpuprof.timeline.collectives.collectives import KINDS, Collectives, find_collectives
from gpuprof.timeline.phases import COMMUNICATION as COMMUNICATION_PHASE
from gpuprof.tracefile.trace import ABSENT, F64, I64, Mask
from gpuprof.units import Assumed, Gpus, Ns, Ratio

if TYPE_CHECKING:
    from gpuprof.timeline.timeline import Timeline

GPUS_OF_A_HOST: Assumed[Gpus] = 8
SIZES_APART: Assumed[Ratio] = 4.0
"""Smallest ratio of two sizes for the difference of their durations to give the link's rate."""
LEAST_WAIT_NS: Assumed[Ns] = 5_000.0
"""Shorter waits, ns, do not count: collectives of one kind differ by a few µs anyway."""


def model_collectives(graph: Graph, transfer_ns: F64 | None = None) -> Graph:
    """The graph with each collective split into waiting for peers and transfer; replays as before.

    `transfer_ns`: per GPU event of the trace time of the collective once all ranks have arrived, ns, from several
    ranks' recordings; where it is NaN or not given, `estimate_transfers` supplies it.
    """
    nodes = np.flatnonzero(graph.on_gpu & (graph.resource == COMMUNICATION))
    if not len(nodes):
        return graph
    rows = graph.gpu_row[nodes]
    known = estimate_transfers(graph.timeline)
    if transfer_ns is not None:
        known = np.where(np.isnan(transfer_ns), known, transfer_ns)
    took = graph.duration_ns[nodes]
    transfer = np.minimum(np.where(np.isnan(known[rows]), took, known[rows]), took)
    late = np.flatnonzero(took - transfer > LEAST_WAIT_NS)
    if not len(late):
        return graph
    return _with_waits(graph, nodes[late], transfer[late])


def waiting(graph: Graph) -> Mask:
    """The nodes that represent waiting for a peer."""
    mask = np.zeros(len(graph), bool)
    mask[graph.edges.source[graph.edges.kind == PEER]] = True
    return mask


def without_waiting(graph: Graph) -> Graph:
    """The graph of this rank if no peer were ever late: its own pace."""
    return scaled(graph, waiting(graph), 0.0)


def communication_cause(graph: Graph) -> str | None:
    """`peer_wait` or `transfer`: the one that would gain more at half its time; None if neither gains."""
    late = waiting(graph)
    step = step_of(graph)
    gains = {
        name: step - step_of(scaled(graph, nodes, 0.5))
        for name, nodes in (("peer_wait", late), ("transfer", (graph.resource == COMMUNICATION) & ~late))
    }
    best = max(gains, key=lambda name: gains[name])
    return best if gains[best] > 0 else None


def _with_waits(graph: Graph, at: I64, transfer: F64) -> Graph:
    """Inserts a waiting node before each collective of `at`, which keeps its transfer only."""
    edges, target = graph.edges, graph.edges.target
    number = np.arange(len(graph)) + np.searchsorted(at, np.arange(len(graph)), side="right")
    new = number[at] - 1
    # Readiness: every edge into the collective but that of an earlier collective on its stream, if that was still under
    # way when this one was launched: then both meet the same late peer.
    wait_of = np.full(len(graph), -1, np.int64)
    wait_of[at] = new
    schedule = simulate(graph)
    ended = np.where(edges.from_start, schedule.start_ns[edges.source], schedule.end_ns[edges.source])
    arrives = np.where(edges.source < target, ended, graph.before_ns[edges.source]) + edges.lag_ns
    into = wait_of[target] >= 0
    after = into & (edges.kind == STREAM) & (graph.resource[edges.source] == COMMUNICATION) & (edges.source < target)
    ready = _ready(graph, into & ~after, arrives, target)
    same_peer = after & (ready[target] >= schedule.start_ns[edges.source])
    own = into & ~same_peer
    ready = _ready(graph, own, arrives, target)
    late = schedule.end_ns[at] - transfer - ready[at]
    duration = graph.duration_ns.copy()
    duration[at] = transfer
    has = ready[at] > NEVER / 2
    all_edges = (
        np.concatenate([number[target], wait_of[target[own]], number[at]]),
        np.concatenate([number[edges.source], number[edges.source[own]], new]),
        np.concatenate([edges.lag_ns, edges.lag_ns[own], np.zeros(len(at))]),
        np.concatenate([edges.from_start, edges.from_start[own], np.zeros(len(at), bool)]),
        np.concatenate([edges.kind, edges.kind[own], np.full(len(at), PEER, np.uint8)]),
    )
    split = graph.recorded_end_ns[at] - transfer

    def column(values: np.ndarray, of_waits: np.ndarray | float) -> np.ndarray:
        return np.insert(values, at, of_waits)

    waits = replace(
        graph,
        duration_ns=column(duration, np.where(has, late, 0.0)),
        resource=column(graph.resource, COMMUNICATION),
        edges=edges_of(len(graph) + len(at), *all_edges),
        before_ns=column(graph.before_ns, NEVER),
        recorded_start_ns=column(graph.recorded_start_ns, np.where(has, ready[at], graph.recorded_start_ns[at])),
        recorded_end_ns=column(graph.recorded_end_ns, split),
        lane=column(graph.lane, -1),
        scope=column(graph.scope, graph.scope[at]),
        call=column(graph.call, graph.call[at]),
        gpu_row=column(graph.gpu_row, graph.gpu_row[at]),
        waits=column(graph.waits, False),
        phase=column(graph.phase, COMMUNICATION_PHASE),
        step=column(graph.step, graph.step[at]),
        step_end=number[graph.step_end],
        shared={},
    )
    waits.recorded_start_ns[number[at]] = split
    return waits


def _ready(graph: Graph, edges: Mask, arrives: F64, target: I64) -> F64:
    ready = np.full(len(graph), NEVER)
    np.maximum.at(ready, target[edges], arrives[edges])
    return ready


# -- what a collective takes without waiting, from one rank's recording


def estimate_transfers(timeline: Timeline) -> F64:
    """Per GPU event of the trace: time of its collective once all ranks have arrived, ns; NaN for other events.

    Bytes over the link's rate, plus a start, and never more than was recorded. The rate is the highest of: what the
    fastest collective reached; the rate from the difference between durations of small and large ones, up to the usual
    rate of such a link. Without bytes, the shortest of its kind.
    """
    found = find_collectives(timeline)
    c = found.columns
    result = np.full(len(timeline.trace.gpu), np.nan)
    if not len(c):
        return result
    took = np.maximum((c.end_ns - c.start_ns).astype(np.float64), 1.0)
    moved = bus_bytes(found, timeline.trace.meta.world_size)
    sized = ~np.isnan(moved)
    transfer = took.copy()
    if sized.any():
        usual = _usual_rate(timeline, int(np.max(c.group_size[sized])))
        kinds = [sized & (c.kind == kind) for kind in np.unique(c.kind[sized]).tolist()]
        rates = [rate for mine in kinds if (rate := _slope(moved[mine], took[mine])) is not None]
        rate = max(float(np.max(moved[sized] / took[sized] * 1e9)), min(usual, max(rates)) if rates else usual)
        transfer[sized] = np.minimum(took[sized], calibrated.START_NS.value + moved[sized] / rate * 1e9)
    for kind in np.unique(c.kind[~sized]).tolist():
        same = c.kind == kind
        transfer[same & ~sized] = np.minimum(took, transfer[same].min())[same & ~sized]
    result[c.row] = transfer
    return result


def bus_bytes(found: Collectives, world_size: int | None) -> F64:
    """Bytes that cross each rank's link, NaN where not known: of an all-reduce 2 (n − 1) / n of its bytes, of the
    others that every rank takes part in (n − 1) / n, as nccl-tests count bus bandwidth."""
    c = found.columns
    size = np.where(c.group_size == ABSENT, world_size or 2, c.group_size).clip(2)
    shared = (size - 1) / size
    one_to_one = np.isin(c.kind, [KINDS.index(k) for k in ("broadcast", "reduce", "send_recv")])
    factor = np.where(one_to_one, 1.0, np.where(c.kind == KINDS.index("all_reduce"), 2 * shared, shared))
    return np.where(c.bytes == ABSENT, np.nan, c.bytes * factor)


def _usual_rate(timeline: Timeline, group_size: int) -> float:
    gpus = timeline.trace.meta.gpus
    gpu = find(name_of(gpus[0]), gpus[0].memory_bytes) if gpus else None
    if gpu is None or not gpu.link_bytes_per_s or group_size > GPUS_OF_A_HOST:
        return calibrated.BETWEEN_HOSTS_BYTES_PER_S.value
    return gpu.link_bytes_per_s / 2 * calibrated.LINK_SHARE.value


def _slope(moved: F64, took: F64) -> float | None:
    """Bytes per second by which the shortest of large collectives last longer than the shortest of small ones."""
    small, large = moved <= moved.max() / SIZES_APART, moved >= moved.max() / 2
    if not small.any():
        return None
    extra = took[large].min() - took[small].min()
    return float((moved[large].min() - moved[small].max()) / extra * 1e9) if extra > 0 else None
