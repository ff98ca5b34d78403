"""Changes that launch work with CUDA graphs instead of kernel by kernel."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import compile as calibrated
from gpuprof.diagnosis.detect.compiled.compiled_passes import Passes, compiled
from gpuprof.replay.cpu_compute import computes
from gpuprof.replay.graph import HOST, STREAM, Edges, Graph
from gpuprof.replay.transform import OnceForEdges, removed
from gpuprof.tracefile.trace import Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Change


def graphed(found: Passes, way: int) -> Change:
    """Eager passes, compiled and captured in CUDA graphs; `way` as for `compiled`."""
    inside = found.rest | (found.group >= 0)
    then = compiled(found, way, calibrated.LAUNCHED.rising[way])

    at_once = OnceForEdges(partial(_edges_at_once, inside=inside))

    def change(graph: Graph) -> Graph:
        graph = then(_warm(graph, way))
        return graph.with_edges(at_once(graph))

    return change


def captured(graph: Graph, host: Mask, work: Mask, graphs: int, way: int) -> Change:
    """GPU work in CUDA graphs, `graphs` of them per step, without the CPU work that launches it; `way` 0: at best, 1:
    as expected. graph: the recorded graph, which has the nodes' steps."""
    first = np.unique(graph.step[host], return_index=True)[1]
    entries = np.flatnonzero(host)[first]

    def change(graph: Graph) -> Graph:
        less = removed(_warm(graph, way), host)
        less = less.with_edges(_edges_at_once(less, work))
        duration = less.duration_ns.copy()
        # Guards and the rest of a pass of compiled code are in its recording.
        duration[entries] += graphs * calibrated.GRAPH_NS.rising[way]
        return less.with_durations(duration)

    return change


def partly_captured(host: Mask) -> Change:
    """The worst case: some launches are still made one by one."""

    def change(graph: Graph) -> Graph:
        return graph.with_durations(
            np.where(host, graph.duration_ns * calibrated.LAUNCHED.rising[2], graph.duration_ns)
        )

    return change


def _warm(graph: Graph, way: int) -> Graph:
    """The graph with CPU work as quick as it is without the launches in between, whose code takes the caches from it;
    long work, and computing on tensors in host memory, do not depend on what ran before them."""
    short = (graph.lane >= 0) & ~graph.waits & (graph.resource == HOST) & ~computes(graph)
    short &= graph.duration_ns <= calibrated.LASTING_NS.value
    return graph.with_durations(np.where(short, graph.duration_ns * calibrated.WARM.rising[way], graph.duration_ns))


def _edges_at_once(graph: Graph, inside: Mask) -> Edges:
    """The edges with kernels of the mask following each other as in a graph."""
    edges = graph.edges
    next_in_graph = inside[edges.target] & (edges.kind == STREAM) & (edges.lag_ns > calibrated.NEXT_NS.value)
    return edges.with_lags(np.where(next_in_graph, calibrated.NEXT_NS.value, edges.lag_ns))
