"""Changes to a graph, each a function Graph → Graph; what they gain is found by simulating the result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuprof.replay.graph import COMMUNICATION, COPY, DEVICE, HOST, INPUT, QUEUE, SYNC, TRANSFER, Graph
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
    edges = graph.edges
    gone = edges.at_target(nodes)
    lag = np.where(edges.at_target(nodes & graph.on_gpu), 0.0, edges.lag_ns)
    waits = gone & np.isin(edges.kind, (SYNC, COPY, QUEUE))
    shorter = replace(graph, duration_ns=np.where(nodes, 0.0, graph.duration_ns), edges=replace(edges, lag_ns=lag))
    return without_edges(shorter, waits)


def without_edges(graph: Graph, edges: Mask) -> Graph:
    """The graph without some of its edges: waits that are no longer waited."""
    return graph.with_edges(graph.edges.keep(~edges))


def without_waits(graph: Graph, nodes: Mask) -> Graph:
    """The calls that end in these waiting nodes no longer wait for the device."""
    return without_edges(graph, graph.edges.at_target(nodes) & np.isin(graph.edges.kind, (SYNC, COPY)))
