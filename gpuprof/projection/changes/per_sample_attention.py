"""Samples that go through attention one after another.

Without padding a batch is one row, and attention without support for lengths is called once per sample: slices, a call,
the next sample. With more samples there are more calls on the CPU and on the GPU, while all other work only grows.
"""

from __future__ import annotations

import re

import numpy as np

from gpuprof.calibration import batch as calibrated
from gpuprof.costs.arguments import parse
from gpuprof.costs.formulas.attention import is_attention, is_backward, takes_one_sample
from gpuprof.costs.formulas.gemm import is_matmul
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.timeline.categories import CATEGORIES, TENSOR_CATEGORIES
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.distinct import ordered
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import F64, I64, NO_TEXT, Mask

_MATMULS = tuple(CATEGORIES.index(name) for name in TENSOR_CATEGORIES if name != "attention")

_TEMPLATE = re.compile("triton_(tem|mm)")
"""Inductor's own matmul kernels."""


@remembered
def rounds_of(graph: Graph) -> I64:
    """For each node the number of whole rounds of its loop, 0 outside of loops. A loop over n samples shows n - 1
    rounds, each from the end of one call to that of the next; the first call, and what precedes it, is not part of a
    round."""
    rounds, loops = _loops(graph)
    return np.append(rounds, 0)[nodes_in(graph, loops)]


def more_calls(rounds: I64, more: float, first: F64, on_gpu: Mask, share: float = calibrated.ROUND.rising[1]) -> F64:
    """For each node, how many times as long it takes with 1 + `more` times the samples.

    rounds: see `rounds_of`; results for nodes outside of loops are meaningless. first: how many times as long the first
    call takes, which is not part of a round. share: CPU time of one more round over that of a recorded one; the GPU's
    is known.
    """
    n = np.maximum(rounds, 1)
    longer = more * (n + 1) / n
    return np.maximum(np.where(on_gpu, 1 + longer - (first - 1) / n, 1 + share * longer), 0.0)


def _loops(graph: Graph) -> tuple[I64, Stretches]:
    """For each loop, how many rounds follow the first call, and the stretch of time that they take."""
    timeline = graph.timeline
    ops = timeline.trace.ops
    rows, backward = _calls_of_one_sample(timeline)
    if not len(rows):
        return np.empty(0, np.int64), Stretches(*(np.empty(0, np.int64) for _ in range(3)))
    thread, start = ops.thread[rows], ops.start_ns[rows]
    # Between the attentions of two layers there are matmuls with weights; between two samples there are none.
    before = np.zeros(len(rows), np.int64)
    matmuls = _matmuls(timeline)
    for one in np.unique(thread).tolist():
        mine = thread == one
        before[mine] = np.searchsorted(matmuls.get(one, np.empty(0, np.int64)), start[mine])
    step = np.searchsorted(timeline.steps.start_ns, start, side="right")
    changes = [np.diff(column) != 0 for column in (thread, before, step, backward.astype(np.int8))]
    first = np.flatnonzero(np.append(True, np.logical_or.reduce(changes)))
    last = np.append(first[1:], len(rows)) - 1
    several = last > first
    first, last = first[several], last[several]
    loops = Stretches(thread[first].astype(np.int64), ops.end_ns[rows[first]], ops.end_ns[rows[last]])
    return (last - first).astype(np.int64), loops


def _calls_of_one_sample(timeline: Timeline) -> tuple[I64, Mask]:
    """(rows of the attention ops that take a single sample, by thread and time; whether each computes gradients). Ops
    without recorded shapes are left out."""
    trace, parent = timeline.trace, timeline.nesting.parent
    ops = trace.ops
    calls = trace.rows_named(ops.name, is_attention)
    rows = np.flatnonzero(calls & (ops.dims != NO_TEXT))
    rows = rows[climb(parent[rows], parent, calls) < 0]  # the outermost of each call
    single: dict[tuple[int, int], bool] = {}
    for row in rows.tolist():
        key = int(ops.name[row]), int(ops.dims[row])
        if key not in single:
            texts = (trace.text(int(column[row])) for column in (ops.dims, ops.types, ops.strides, ops.concrete))
            arguments = parse(trace.strings[key[0]], *texts)
            single[key] = arguments is not None and takes_one_sample(arguments)
    rows = rows[[single[int(ops.name[row]), int(ops.dims[row])] for row in rows.tolist()]] if len(rows) else rows
    rows = rows[np.lexsort((ops.start_ns[rows], ops.thread[rows]))]
    return rows, trace.rows_named(ops.name, lambda name: is_attention(name) and is_backward(name))[rows]


def _matmuls(timeline: Timeline) -> dict[int, I64]:
    """Thread → when it begins matmuls with weights: such ops, and launches of other kernels that multiply."""
    trace, links = timeline.trace, timeline.links
    ops, calls = trace.ops, trace.calls
    named = trace.rows_named(ops.name, lambda name: is_matmul(name) or _TEMPLATE.match(name) is not None)
    multiply = np.isin(timeline.category, _MATMULS) & (links.call >= 0)
    launched = links.call[multiply]
    thread = np.concatenate([ops.thread[named], calls.thread[launched]])
    start = np.concatenate([ops.start_ns[named], calls.start_ns[launched]])
    return {one: ordered(start[thread == one]) for one in np.unique(thread).tolist()}
