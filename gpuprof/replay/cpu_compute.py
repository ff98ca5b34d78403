"""The CPU's own computing: ops on tensors in host memory, which take far longer than a launch."""

from __future__ import annotations

import numpy as np

from gpuprof.calibration import slow as calibrated
from gpuprof.replay.graph import HOST, Graph
from gpuprof.timeline.cpu.view_ops import NO_ELEMENTS
from gpuprof.tracefile.trace import OP, Mask


def without_launches(graph: Graph) -> Mask:
    """CPU work outside all calls, and outside ops that launch GPU work."""
    timeline = graph.timeline
    ops, rows = timeline.trace.ops, timeline.links.op
    launches = np.zeros(len(ops) + 1, bool)
    launches[rows[rows >= 0]] = True
    launches[:-1] &= ops.kind == OP
    launches[-1] = False
    return (graph.lane >= 0) & ~graph.waits & (graph.resource == HOST) & (graph.call < 0) & ~launches[graph.scope]


def computes(graph: Graph) -> Mask:
    """Long parts of that work inside ops that go over elements: they compute on tensors in host memory, in many
    threads. Read-only: the same for all graphs with these nodes."""
    if "computes" not in graph.shared:
        graph.shared["computes"] = found = _computes(graph)
        found.flags.writeable = False
    return graph.shared["computes"]


def _computes(graph: Graph) -> Mask:
    trace = graph.timeline.trace
    over_elements = (trace.ops.kind == OP) & ~trace.rows_named(trace.ops.name, NO_ELEMENTS.__contains__)
    in_op = np.append(over_elements, False)[graph.scope]
    took = graph.recorded_end_ns - graph.recorded_start_ns
    return without_launches(graph) & in_op & (took >= calibrated.COMPUTES_NS.value)


def good_part(graph: Graph, nodes: Mask) -> Mask | None:
    """These nodes if they are a large part of the CPU's own work, otherwise None."""
    host = (graph.lane >= 0) & ~graph.waits
    whole, part = (float(graph.duration_ns[mask].sum()) for mask in (host, nodes))
    return nodes if part > 0 and part >= calibrated.COMPUTES_SHARE.value * whole else None
