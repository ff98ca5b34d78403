"""Changes to a graph, each a function Graph → Graph; simulating the result gives the gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gpuprof.replay.graph import (
    COMMUNICATION,
    COPY,
    DEVICE,
    HOST,
    INPUT,
    QUEUE,
    SYNC,
    TRANSFER,
    UNBOUND,
    Edges,
    Graph,
)
from gpuprof.tracefile.compiled import compiled
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Convention, Entries

MOST_REMOVING: Convention[Entries] = 8
"""Masks of removed nodes that are kept with their edges: one change is applied to some graphs in a row."""


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
    return _lasting(graph, graph.duration_ns * factors.take(graph.resource))


def without_resource(graph: Graph, resource: str) -> Graph:
    """The graph in which a resource takes no time; cached, so that it is simulated only once."""
    faster = scale(graph, **{resource: 0.0})
    return graph if faster is graph else graph.memo.setdefault(f"without {resource}", faster)


def scaled(graph: Graph, nodes: Mask, factor: float | F64) -> Graph:
    """The durations of some nodes times a factor (one for all, or one per node of the graph)."""
    return _lasting(graph, np.where(nodes, graph.duration_ns * factor, graph.duration_ns))


def at_most(graph: Graph, parts: Sequence[tuple[Mask | I64, float]]) -> Graph:
    """Nodes that take no more than a time together, each shortened by the same factor. parts: (nodes, ns)."""
    duration = graph.duration_ns.copy()
    for nodes, ns in parts:
        now = float(duration[nodes].sum())
        if now > 0:
            duration[nodes] *= min(ns / now, 1.0)
    return _lasting(graph, duration)


def _lasting(graph: Graph, duration_ns: F64) -> Graph:
    """The graph with these durations; the graph itself if nothing changes, so that it is not simulated again."""
    return graph if np.array_equal(duration_ns, graph.duration_ns) else graph.with_durations(duration_ns)


def removed(graph: Graph, nodes: Mask) -> Graph:
    """Makes some nodes, and reaching them, take no time; later nodes still wait for what these waited for.

    A removed call does not wait either: neither for a device nor for room in a queue. `nodes` must not be changed
    afterwards: the edges are made once for all graphs from which the same mask is removed.
    """
    kept: list[tuple[Mask, Removing]] = graph.shared.setdefault("removing", [])
    change = next((change for mask, change in kept if mask is nodes), None)
    if change is None:
        change = Removing(nodes)
        kept.append((nodes, change))
        del kept[:-MOST_REMOVING]
    return change(graph)


class OnceForEdges:
    """A change of edges, made once for graphs that have the same ones and differ in durations only."""

    def __init__(self, change: Callable[[Graph], Edges]) -> None:
        self._change = change
        self._last: tuple[Edges, Edges] | None = None

    def __call__(self, graph: Graph) -> Edges:
        if self._last is None or self._last[0] is not graph.edges:
            self._last = graph.edges, self._change(graph)
        return self._last[1]


class Removing:
    """`removed` as a change of several graphs."""

    def __init__(self, nodes: Mask) -> None:
        self._nodes = nodes
        self._edges = OnceForEdges(self._shortened)

    def __call__(self, graph: Graph) -> Graph:
        duration = np.where(self._nodes, 0.0, graph.duration_ns)
        return replace(graph, duration_ns=duration, edges=self._edges(graph))

    def _shortened(self, graph: Graph) -> Edges:
        lag = graph.edges.lag_ns.copy()
        _shorten(graph.edges.first, graph.edges.kind, self._nodes, graph.gpu_row, lag)
        return graph.edges.with_lags(lag)


@compiled
def _shorten(first, kind, nodes, gpu_row, lag):  # pragma: no cover - compiled
    """Makes some nodes wait for nothing, and GPU nodes among them follow at once."""
    for node in range(len(nodes)):
        if not nodes[node]:
            continue
        for e in range(first[node], first[node + 1]):
            if kind[e] == SYNC or kind[e] == COPY or kind[e] == QUEUE:
                lag[e] = UNBOUND
            elif gpu_row[node] >= 0 and lag[e] != UNBOUND:
                lag[e] = 0.0


def without_edges(graph: Graph, edges: Mask) -> Graph:
    """The graph without some of its edges: waits that no longer hold anything up."""
    return graph.with_edges(graph.edges.with_lags(np.where(edges, UNBOUND, graph.edges.lag_ns)))


def without_waits(graph: Graph, nodes: Mask) -> Graph:
    """The calls that end in these waiting nodes no longer wait for the device."""
    edges = graph.edges
    return without_edges(graph, nodes[edges.target] & np.isin(edges.kind, (SYNC, COPY)))
