"""A rank's work in a step by resource, phase and op, so that a slow rank can be compared with the others."""

from __future__ import annotations

import numpy as np

from gpuprof.ranks.digest_data import Doing, Ints
from gpuprof.replay.graph import DEVICE, HOST, INPUT, RESOURCES, TRANSFER, Graph
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.frames import FrameIndex
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import ANNOTATION, Trace
from gpuprof.units import Convention, Entries

MOST_KEPT: Convention[Entries] = 300
"""Kinds of work kept per rank; they cover practically all of a step."""


def rank_work_of(graph: Graph) -> tuple[Doing, ...]:
    """The rank's own work by resource, phase and name, largest first; waits are not work."""
    timeline = graph.timeline
    trace = timeline.trace
    nodes = np.flatnonzero(np.isin(graph.resource, (HOST, INPUT, TRANSFER, DEVICE)) & ~graph.waits)
    if not len(nodes):
        return ()
    name = _names(graph, nodes)
    key = (graph.resource[nodes].astype(np.int64) * len(PHASES) + graph.phase[nodes]) * (name.max() + 1) + name
    keys, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    total = np.bincount(inverse, weights=graph.duration_ns[nodes], minlength=len(keys)) / graph.steps
    order = np.lexsort((-graph.duration_ns[nodes], inverse))
    longest = nodes[order[np.searchsorted(inverse[order], np.arange(len(keys)))]]
    kept = np.argsort(-total, kind="stable")[:MOST_KEPT]
    frames = _frames(timeline, graph, longest[kept])
    result = []
    for k, frame in zip(kept.tolist(), frames, strict=True):
        node, at = int(nodes[first[k]]), int(longest[k])
        result.append(
            Doing(
                resource=RESOURCES[graph.resource[node]],
                phase=PHASES[graph.phase[node]],
                what=_what(trace, int(name[first[k]])),
                ns=float(total[k]),
                frame=frame,
                start_ns=round(graph.recorded_start_ns[at]),
                longest_ns=round(graph.recorded_end_ns[at] - graph.recorded_start_ns[at]),
            )
        )
    return tuple(result)


def _names(graph: Graph, nodes: Ints) -> Ints:
    """Code of each node's activity: 0 for Python, then categories of kernels, then names of ops."""
    timeline = graph.timeline
    ops = timeline.trace.ops
    name = np.zeros(len(nodes), np.int64)
    scope = graph.scope[nodes]
    in_op = np.flatnonzero((scope >= 0) & (graph.gpu_row[nodes] < 0))
    in_op = in_op[ops.kind[scope[in_op]] != ANNOTATION]
    name[in_op] = 1 + len(CATEGORIES) + ops.name[scope[in_op]]
    gpu = np.flatnonzero(graph.gpu_row[nodes] >= 0)
    name[gpu] = 1 + timeline.category[graph.gpu_row[nodes[gpu]]]
    return name


def _what(trace: Trace, name: int) -> str:
    if name == 0:
        return "Python"
    if name <= len(CATEGORIES):
        return f"{CATEGORIES[name - 1]} kernels"
    return trace.strings[name - 1 - len(CATEGORIES)]


def _frames(timeline: Timeline, graph: Graph, nodes: Ints) -> list[str | None]:
    """The Python frame at the middle of each CPU node, if there are stacks."""
    trace = timeline.trace
    if not len(trace.frames):
        return [None] * len(nodes)
    middle = (graph.recorded_start_ns[nodes] + graph.recorded_end_ns[nodes]) / 2 + timeline.window[0]
    found = FrameIndex(trace, timeline.nesting).frame(graph.lane[nodes], middle.astype(np.int64), graph.scope[nodes])
    return [trace.text(int(i)) if graph.lane[n] >= 0 else None for i, n in zip(found, nodes, strict=True)]
