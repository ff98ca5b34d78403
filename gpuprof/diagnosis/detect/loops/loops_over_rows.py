"""Loops without gradients over the rows of small tensors, which the CPU computes by itself in less time than it takes
to launch their kernels: advantages and returns from the last moment to the first, for example."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.loops.small_op_loops import SPLITS, SmallLoops
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.replay.stretches import nodes_in
from gpuprof.tracefile.trace import OP, Mask
from gpuprof.units import Assumed, Elements, Rounds

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_ROUNDS: Assumed[Rounds] = 16
"""Fewest rounds for which copies to the CPU and back pay."""
MOST_ELEMENTS: Assumed[Elements] = 16_384
"""Most elements of a round's tensors: a core computes with these about as quickly as it launches a kernel."""
_ROW = "aten::select"


def loops_over_rows(case: Analysis, loops: SmallLoops) -> Mask:
    """Mask of the loops whose rounds take rows of tensors, or have them from a split before the loop, have no
    gradients, and compute with few elements."""
    ops, graph, last = case.trace.ops, case.graph, loops.last
    inside = nodes_in(graph, loops.stretches) + 1
    waits = np.bincount(inside[graph.waits], minlength=len(loops.rounds) + 1)[1:]
    found = (loops.backward.end_ns <= loops.backward.start_ns) & (loops.rounds >= FEWEST_ROUNDS) & (waits == 0)
    mine, rows, splits = ops.kind == OP, case.ops_named(_ROW.__eq__), case.ops_named(SPLITS.__contains__)
    for one in np.flatnonzero(found).tolist():
        here = mine & (ops.thread == last.thread[one])
        here &= (ops.start_ns >= last.start_ns[one]) & (ops.end_ns <= last.end_ns[one])
        works = np.unique(ops.dims[here & ~rows]).tolist()
        sizes = [math.prod(shape) for text in works for shape in shapes_in(case, text) if shape]
        whole = splits & (ops.thread == last.thread[one])
        whole &= (ops.start_ns >= loops.stretches.start_ns[one]) & (ops.end_ns <= last.start_ns[one])
        taken = bool((here & rows).any() or whole.any())
        found[one] = taken and 1 < max(sizes, default=0) <= MOST_ELEMENTS
    return found
