"""Where the recorded steps plan kernels for shapes that they meet for the first time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.replay.graph import Graph
from gpuprof.timeline.cpu.slow_calls import PLANNING, slow_calls
from gpuprof.tracefile.trace import F64, Mask


@dataclass(frozen=True, slots=True)
class Planning:
    """The ops of a graph that plan."""

    nodes: Mask
    """Mask of the CPU work in them."""
    usual_ns: F64
    """Per node its time without planning, ns; as recorded for other nodes."""
    recorded_ns: F64
    """Per node as it was recorded, planning included."""
    names: list[str]
    """Names of the ops, each once."""


def planning(graph: Graph) -> Planning:
    """The ops that plan, as nodes of a graph: see `gpuprof.timeline.cpu.slow_calls`."""
    timeline = graph.timeline
    found = slow_calls(timeline)
    rows = np.flatnonzero(found.kind == PLANNING)
    left = np.full(len(timeline.trace.ops) + 1, np.nan)
    left[found.op[rows]] = np.minimum(found.usual_ns[rows] / np.maximum(found.own_ns[rows], 1), 1.0)
    part = left[graph.scope]
    nodes = np.isfinite(part) & (graph.lane >= 0) & ~graph.waits
    recorded = (graph.recorded_end_ns - graph.recorded_start_ns).clip(0)
    names = sorted({timeline.trace.strings[i] for i in timeline.trace.ops.name[found.op[rows]].tolist()})
    usual_ns = np.where(nodes, recorded * np.nan_to_num(part), graph.duration_ns)
    return Planning(nodes, usual_ns, recorded, names)


def without_planning(graph: Graph) -> Graph:
    """The graph with nothing left to plan; the graph itself if nothing was planned."""
    found = planning(graph)
    if not found.nodes.any():
        return graph
    return graph.with_durations(np.where(found.nodes, np.minimum(graph.duration_ns, found.usual_ns), graph.duration_ns))
