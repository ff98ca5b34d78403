"""A deeper model of the same layers, or layers with more experts: each part of a step is repeated as the model has it.

A recording of a few layers represents the whole model if all layers are alike. What a layer does on the CPU and on the
GPU is done by each; so its time, and the lags between its parts, are stretched by the number of layers. What is done
once a step (embeddings, head, loss) stays; the optimizer scales with the number of parameters that it updates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuprof.replay.graph import Graph
from gpuprof.timeline.frames import MODULE, FrameIndex, module_class
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTE
from gpuprof.tracefile.trace import ABSENT, ANNOTATION, F64, I64, Mask


@dataclass(frozen=True, slots=True)
class Layers:
    """Which nodes of a graph belong to layers."""

    nodes: Mask
    count: int
    """Layers in the recording."""


def find_layers(graph: Graph, count: int | None) -> Layers | None:
    """The layers that a pass goes through one after another; None if no range or frame shows them.

    count: how many the model is known to have; None: they are counted. The layer is the module class whose outermost
    ranges take most time, among those that occur several times in a step. Work between the first and the last part of a
    pass that is known to be a layer's counts too: autograd's bookkeeping, kernels whose forward op is not known.
    """
    timeline = graph.timeline
    trace, ops = timeline.trace, timeline.trace.ops
    ranges = (ops.kind == ANNOTATION) & trace.rows_named(ops.name, lambda text: text.startswith(MODULE))
    rows = np.flatnonzero(ranges)
    if not len(rows):
        return None
    above = climb(timeline.nesting.parent[rows], timeline.nesting.parent, ranges)
    low, high = timeline.window
    outer = rows[(above < 0) & (ops.start_ns[rows] >= low) & (ops.start_ns[rows] < high)]
    classes = np.array([module_class(trace.strings[name]) for name in ops.name[outer].tolist()])
    if not len(classes):
        return None
    names, which, often = np.unique(classes, return_inverse=True, return_counts=True)
    took = np.bincount(which, weights=(ops.end_ns - ops.start_ns)[outer])
    took[often < 2 * graph.steps] = 0
    if not took.any():
        return None
    layer = str(names[took.argmax()])
    ahead = timeline.host.op[outer] == FORWARD
    found = round(np.count_nonzero(ahead & (classes == layer)) / graph.steps)
    if not (count or found):
        return None
    named = trace.rows_named(ops.name, lambda text: text.startswith(MODULE) and module_class(text) == layer)
    known = _known(graph, named & ranges)
    return Layers(_filled(graph, known), count or found)


def _known(graph: Graph, layer: Mask) -> Mask:
    """Nodes in a range of a layer, or whose forward op is in one."""
    timeline = graph.timeline
    trace = timeline.trace
    thread = graph.lane.astype(np.int32)
    moment = np.round(graph.recorded_start_ns).astype(np.int64) + timeline.window[0]
    launched = np.flatnonzero(graph.on_gpu)
    thread[launched] = timeline.links.thread[graph.gpu_row[launched]]
    moment[launched] = timeline.links.begun_ns[graph.gpu_row[launched]]
    _, module = FrameIndex(trace, timeline.nesting).module_rows(thread, moment, graph.scope)
    found = climb(module, timeline.nesting.parent, layer)
    return found >= 0


def _filled(graph: Graph, known: Mask) -> Mask:
    """The nodes of layers, including everything between two of them in the same pass."""
    timeline = graph.timeline
    moment = np.round(graph.recorded_start_ns)
    launched = np.flatnonzero(graph.on_gpu)
    begun = timeline.links.begun_ns[graph.gpu_row[launched]]
    moment[launched] = np.where(begun == ABSENT, moment[launched], begun - timeline.window[0])
    moving = np.flatnonzero(np.isin(graph.phase, (FORWARD, BACKWARD, RECOMPUTE)) & (graph.duration_ns > 0))
    moving = moving[np.argsort(moment[moving], kind="stable")]
    ahead = (graph.phase[moving] == FORWARD).astype(np.int64)
    number = np.cumsum(np.diff(ahead, prepend=ahead[:1]) != 0)
    result = known.copy()
    result[moving] |= _between(number, known[moving])
    return result


def _between(number: I64, known: Mask) -> Mask:
    """Rows from the first known one to the last of those that share a number; numbers ascend."""
    at = np.arange(len(known))
    count = int(number[-1]) + 1 if len(number) else 0
    first, last = np.full(count, len(known)), np.full(count, -1)
    np.minimum.at(first, number[known], at[known])
    np.maximum.at(last, number[known], at[known])
    return (at >= first[number]) & (at <= last[number])


def times(
    graph: Graph, layers: Layers | None, deeper: float, experts: Mask | None, wider: float, adapters: float
) -> F64:
    """For each node, how many times as often the larger model executes it.

    deeper: its layers over the recorded ones. experts: nodes of loops over experts, of which it has `wider` times the
    number. adapters: its trained parameters over the recorded ones.
    """
    factor = np.ones(len(graph))
    if layers is not None:
        factor[layers.nodes] = deeper
    if experts is not None:
        factor[experts] *= wider
    factor[graph.phase == OPTIMIZER] = adapters
    return factor


def stretched(graph: Graph, factor: F64) -> Graph:
    """The graph with each node's time, and the lags between nodes, multiplied by a factor."""
    edges = graph.edges
    lag = edges.lag_ns * np.minimum(factor[edges.source], factor[edges.target])
    return replace(graph, duration_ns=graph.duration_ns * factor, edges=replace(edges, lag_ns=lag))
