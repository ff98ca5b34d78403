"""Samples that go through attention one after another.

Without padding a batch is one row, and attention that knows no lengths is called for each sample of it: slices, a call,
the next sample. With more samples there are more calls, for the host and for the GPU, where all else only grows.
"""

from __future__ import annotations

import numpy as np

from gpuprof.costs.attention import is_attention
from gpuprof.costs.gemm import is_product
from gpuprof.replay.graph import F64, Graph
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.timeline.nesting import climb
from gpuprof.tracefile.model import I64

ROUND = (0.5, 0.7, 1.0)
"""Of a recorded round's time what another one takes, at best, usually, at worst. Rounds are many small ops without
Python between them, and what recording costs falls on them more than the replay takes off: with unsloth's QLoRA of
Qwen3-8B (scenarios/qwen3_8b_unsloth), 28 samples more took 0.5 to 0.7 of it."""


def more_calls(graph: Graph, factor: float, share: float = ROUND[1]) -> F64:
    """Per node how many times as much there is of it with `factor` times the samples; 1 for what is done once.

    A loop of n samples shows n - 1 whole rounds, from the end of one call to that of the next; the first and what is
    before it stay. share: of a recorded round's time what one more takes.
    """
    rounds, loops = _rounds(graph)
    more = (factor - 1) * (rounds + 1) / np.maximum(rounds, 1)
    times = np.append(np.maximum(1 + share * more, 0.0), 1.0)
    return times[nodes_in(graph, loops)]


def _rounds(graph: Graph) -> tuple[I64, Stretches]:
    """Of each loop how many rounds follow the first call, and the stretch that they take."""
    trace = graph.timeline.trace
    ops, parent = trace.ops, graph.timeline.nesting.parent
    calls = trace.rows_named(ops.name, is_attention)
    rows = np.flatnonzero(calls)
    rows = rows[climb(parent[rows], parent, lambda at, _: ~calls[at]) < 0]  # the outermost of each call
    rows = rows[np.lexsort((ops.start_ns[rows], ops.thread[rows]))]
    if not len(rows):
        return np.empty(0, np.int64), Stretches(*(np.empty(0, np.int64) for _ in range(3)))
    # Between the attentions of two layers there are products with weights, between two samples there are none.
    before = np.zeros(len(rows), np.int64)
    products = trace.rows_named(ops.name, is_product)
    for thread in np.unique(ops.thread[rows]).tolist():
        mine = ops.thread[rows] == thread
        starts = np.sort(ops.start_ns[products & (ops.thread == thread)])
        before[mine] = np.searchsorted(starts, ops.start_ns[rows[mine]])
    new = np.r_[True, (np.diff(before) != 0) | (np.diff(ops.thread[rows]) != 0)]
    first = np.flatnonzero(new)
    last = np.r_[first[1:], len(rows)] - 1
    several = last > first
    first, last = first[several], last[several]
    loops = Stretches(ops.thread[rows[first]].astype(np.int64), ops.end_ns[rows[first]], ops.end_ns[rows[last]])
    return (last - first).astype(np.int64), loops
