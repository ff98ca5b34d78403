"""Work that is launched kernel by kernel, as CUDA graphs would launch it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import compile as calibrated
from gpuprof.diagnosis.detect.compiled_passes import Passes, compiled
from gpuprof.replay.graph import STREAM, Edges, Graph
from gpuprof.replay.transform import OnceForEdges, removed
from gpuprof.tracefile.trace import Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Change

LAUNCHED = calibrated.LAUNCHED.rising
"""Launches that the host still makes one by one, where some part cannot be captured: at best, usually, at worst."""
NEXT_NS = calibrated.NEXT_NS.value
"""From one kernel of a graph to the next."""
GRAPH_NS = calibrated.GRAPH_NS.rising[:2]
"""What the launch of a graph takes, and checking its inputs, at best and usually. Guards and the rest of a
pass of compiled code are in its recording already."""


def graphed(found: Passes, way: int) -> Change:
    """Eager passes compiled and in CUDA graphs; `way` as for `compiled`."""
    inside = found.rest | (found.group >= 0)
    then = compiled(found, way, LAUNCHED[way])

    at_once = OnceForEdges(partial(_edges_at_once, inside=inside))

    def change(graph: Graph) -> Graph:
        graph = then(graph)
        return graph.with_edges(at_once(graph))

    return change


def captured(graph: Graph, host: Mask, work: Mask, graphs: int, way: int) -> Change:
    """GPU work in CUDA graphs, `graphs` of them a step, without the host work that launches it; `way` 0: at best, 1:
    usually. graph: the recorded one, which tells the steps of the nodes."""
    first = np.unique(graph.step[host], return_index=True)[1]
    entries = np.flatnonzero(host)[first]

    def change(graph: Graph) -> Graph:
        less = removed(graph, host)
        less = less.with_edges(_edges_at_once(less, work))
        duration = less.duration_ns.copy()
        duration[entries] += graphs * GRAPH_NS[way]
        return less.with_durations(duration)

    return change


def partly_captured(host: Mask) -> Change:
    """The same at worst: some launches are still made one by one."""

    def change(graph: Graph) -> Graph:
        return graph.with_durations(np.where(host, graph.duration_ns * LAUNCHED[2], graph.duration_ns))

    return change


def _edges_at_once(graph: Graph, inside: Mask) -> Edges:
    """Kernels of the mask follow each other as they do in a graph."""
    edges = graph.edges
    next_in_graph = inside[edges.target] & (edges.kind == STREAM) & (edges.lag_ns > NEXT_NS)
    return edges.with_lags(np.where(next_in_graph, NEXT_NS, edges.lag_ns))
