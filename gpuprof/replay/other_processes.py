"""The step in another process with a faster or slower CPU, where a fix may gain more or less.

These are the ends of the range of eight in ten processes. The steps before and after a fix are those of one process, so
a difference between processes counts only as far as it makes something else the limit.
"""

from __future__ import annotations

from gpuprof.calibration import noise as calibrated
from gpuprof.replay.cpu_compute import computes, good_part
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import scale, scaled
from gpuprof.tracefile.trace import Mask


def other_processes(graph: Graph) -> tuple[Graph, ...]:
    """The graph with a quicker and a slower CPU; and where it computes for long on tensors in host memory, with that
    quicker and slower."""
    slower = 1 + calibrated.HOST_BOUND.value
    paces = tuple(scale(graph, host=factor, input=factor) for factor in (1 / slower, slower))
    nodes = good_part(graph, computes(graph))
    if nodes is None:
        return paces
    most = max(calibrated.CPU_COMPUTE.value, *_seen(graph, nodes))
    return (*paces, *(scaled(graph, nodes, factor) for factor in (1 / most, most)))


def _seen(graph: Graph, nodes: Mask) -> tuple[float, float]:
    """How many times as long, and as short, these nodes take in the graph as where they were recorded: timed steps of
    the same process may differ from those by more than processes usually do."""
    recorded = float((graph.recorded_end_ns - graph.recorded_start_ns)[nodes].sum())
    ratio = float(graph.duration_ns[nodes].sum()) / max(recorded, 1.0)
    return ratio, 1 / max(ratio, 1e-3)
