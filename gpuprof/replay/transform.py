"""Changes to a graph, each a function Graph → Graph; what they gain is found by simulating the result."""

from __future__ import annotations

from dataclasses import replace

import numba
import numpy as np

from gpuprof.replay.graph import COMMUNICATION, COPY, DEVICE, HOST, INPUT, QUEUE, SYNC, TRANSFER, Edges, Graph
from gpuprof.tracefile.trace import F64, Mask


def scale(
    graph: Graph,
    host: float = 1.0,
    input: float = 1.0,
    transfer: float = 1.0,
    communication: float = 1.0,
    device: float = 1.0,
) -> Graph:
    """All durations of each resource times its factor: 0.5 makes it twice as fast."""
    factors = np.ones(6)
    for code, factor in (
        (HOST, host), (INPUT, input), (TRANSFER, transfer), (COMMUNICATION, communication), (DEVICE, device),
    ):  # fmt: skip
        factors[code] = factor
    return graph.with_durations(graph.duration_ns * factors[graph.resource])


def scaled(graph: Graph, nodes: Mask, factor: float | F64) -> Graph:
    """The durations of some nodes times a factor (one for all, or one per node of the graph)."""
    return graph.with_durations(np.where(nodes, graph.duration_ns * factor, graph.duration_ns))


def removed(graph: Graph, nodes: Mask) -> Graph:
    """Some nodes take no time any more, nor does getting to them: what they waited for, those after them still do.

    A removed call does not wait either: neither for a device nor for room in a queue.
    """
    old = graph.edges
    edges = Edges(*_shortened(old.first, old.source, old.lag_ns, old.from_start, old.kind, nodes, graph.on_gpu))
    return replace(graph, duration_ns=np.where(nodes, 0.0, graph.duration_ns), edges=edges)


@numba.njit(cache=True)
def _shortened(first, source, lag, from_start, kind, nodes, on_gpu):  # pragma: no cover - compiled
    """The columns of the edges in which some nodes wait for nothing, and GPU nodes among them follow at once."""
    new_first, new_source, new_lag = np.empty_like(first), np.empty_like(source), np.empty_like(lag)
    new_from_start, new_kind = np.empty_like(from_start), np.empty_like(kind)
    kept = 0
    for node in range(len(nodes)):
        new_first[node] = kept
        for e in range(first[node], first[node + 1]):
            if nodes[node] and (kind[e] == SYNC or kind[e] == COPY or kind[e] == QUEUE):
                continue
            new_source[kept], new_from_start[kept], new_kind[kept] = source[e], from_start[e], kind[e]
            new_lag[kept] = 0.0 if nodes[node] and on_gpu[node] else lag[e]
            kept += 1
    new_first[len(nodes)] = kept
    return new_first, new_source[:kept], new_lag[:kept], new_from_start[:kept], new_kind[:kept]


def without_edges(graph: Graph, edges: Mask) -> Graph:
    """The graph without some of its edges: waits that are no longer waited."""
    return graph.with_edges(graph.edges.keep(~edges))


def without_waits(graph: Graph, nodes: Mask) -> Graph:
    """The calls that end in these waiting nodes no longer wait for the device."""
    return without_edges(graph, graph.edges.at_target(nodes) & np.isin(graph.edges.kind, (SYNC, COPY)))
