"""Loops over small ops whose rounds carry a state: each needs the result of the one before.

The results of a loop's rounds are collected somewhere. Where no round writes to a tensor in place or is read by the
CPU, where nothing joins a list after the loop in the forward pass, and where no round adds two tensors of one shape, of
which one may be the sum of the results, gradients can hardly reach the rounds in another way: each result goes into the
next round. So the forward algorithm of a conditional random field looks, with the logarithm of a sum in each round.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.loops.small_op_loops import JOINS, SmallLoops
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.replay.stretches import nodes_in
from gpuprof.timeline.phases import FORWARD
from gpuprof.tracefile.trace import OP, Mask
from gpuprof.units import Assumed, Kernels

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

SUMS = re.compile(r"^aten::(add|sub|sum|mul|maximum|minimum|logaddexp\w*)$")
"""Ops of two tensors that may collect the results of all rounds, if both have the same shape."""
FEWEST_KERNELS: Assumed[Kernels] = 2
"""Fewest kernels of a round on average: one is an op that could as well take all rounds."""


def carried(case: Analysis, loops: SmallLoops) -> Mask:
    """Mask of the loops of the forward pass whose rounds need the one before."""
    ops, parent, graph = case.trace.ops, case.timeline.nesting.parent, case.graph
    outer = (ops.kind == OP) & ~np.append(ops.kind == OP, False)[parent]
    forward = outer & (case.timeline.host.op == FORWARD)
    joins = ops.start_ns[forward & case.ops_named(JOINS.__contains__)]
    begins = np.append(np.sort(case.timeline.host.backward.start), np.iinfo(np.int64).max)
    inside = nodes_in(graph, loops.stretches) + 1
    count = len(loops.rounds) + 1
    waits, kernels = (np.bincount(inside[of], minlength=count)[1:] for of in (graph.waits, graph.on_gpu))
    learns = loops.backward.end_ns > loops.backward.start_ns
    found = learns & (waits == 0) & (kernels >= FEWEST_KERNELS * loops.rounds)
    for one in np.flatnonzero(found).tolist():
        begin, start, end = (int(t[one]) for t in (loops.stretches.start_ns, loops.last.start_ns, loops.last.end_ns))
        until = begins[np.searchsorted(begins, end)]
        here = (ops.thread == loops.last.thread[one]) & (ops.start_ns >= start) & (ops.end_ns <= end)
        joined = ((joins >= begin) & (joins < until)).any()
        found[one] = not joined and not any(_may_collect(case, row) for row in np.flatnonzero(forward & here).tolist())
    return found


def _may_collect(case: Analysis, row: int) -> bool:
    """Whether an op may write a round's result next to the others, or add it to theirs."""
    name = case.trace.strings[int(case.trace.ops.name[row])]
    if name.endswith("_"):
        return True
    shapes = shapes_in(case, int(case.trace.ops.dims[row]))
    return bool(SUMS.match(name)) and (len(shapes) < 2 or shapes[0] == shapes[1])
