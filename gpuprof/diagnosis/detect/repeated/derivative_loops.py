"""Calls of `torch.autograd.grad` for one output after another, through the same graph: rows of a Jacobian, second
derivatives by each coordinate, gradients of each sample."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import latency
from gpuprof.calibration import loops as calibrated
from gpuprof.diagnosis.detect.gpu.replace_work import replacement_of, with_replacement
from gpuprof.diagnosis.detect.repeated.repeated_derivatives import (
    FEWEST_NODES,
    GraphPass,
    made_by,
    output_of,
    passes_of_steps,
)
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Rounds, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

FEWEST_PASSES: Assumed[Rounds] = 4
"""Fewest passes in a row that one batched pass replaces; for fewer it costs as much."""
SAME_GRAPH_SHARE: Assumed[Share] = 0.8
"""Smallest share of the nodes of two passes, one after the other, that both run."""


_SUM = "torch::autograd::AccumulateGrad"
"""Op that adds to a gradient; `torch.autograd.grad` runs the node around it, but not this."""


@dataclass(frozen=True, slots=True)
class DerivativeLoops:
    """Loops of passes; columns by loop."""

    passes: I64
    """Number of passes of each."""
    group: I64
    """Per node of the graph the loop whose passes it belongs to, or the number of loops later for work of later passes
    through what these have made; -1: none."""
    per_step: float
    """Passes in such loops per step."""

    def changes(self, case: Analysis) -> tuple[Change, Change, Change]:
        """One batched pass in place of each loop, at best, as expected and at worst: fewer launches, the same
        arithmetic."""
        graph, count = case.graph, 2 * len(self.passes)
        rounds = np.tile(self.passes, 2)
        inside = self.group >= 0
        host, gpu = inside & ~graph.on_gpu & ~graph.waits, inside & graph.on_gpu

        def total(mask: Mask, values: F64) -> F64:
            return np.bincount(self.group[mask], weights=values[mask], minlength=count).astype(np.float64)

        took, work = total(host, graph.duration_ns), total(gpu, graph.duration_ns)
        nothing = total(gpu, np.minimum(graph.duration_ns, latency.FLOOR_NS.value))
        pieces = np.bincount(self.group[gpu], minlength=count)

        def change(level: int) -> Change:
            left = np.minimum(calibrated.BATCHED_PASS.rising[level] / rounds, 1.0)
            launches = np.ceil(pieces * np.minimum(1.0 / rounds, 1.0)).astype(np.int64)
            then = (work - nothing) + nothing * left
            new = replacement_of(graph, self.group, took * left, then, launches)
            return partial(with_replacement, replacement=new)

        return change(0), change(1), change(2)


def find_derivative_loops(case: Analysis) -> DerivativeLoops | None:
    """Such loops in the recorded steps; None if there are none. Calls of `backward` are left out: they add to
    gradients."""
    loops, made = list[list[GraphPass]](), list[set[int]]()
    for passes in passes_of_steps(case):
        for begin, end in _runs(case, passes):
            mine = passes[begin:end]
            loops.append(mine)
            made.append(set[int]().union(*(made_by(passes[end:], one) for one in mine if any(one.made))))
    if not loops:
        return None
    rows = [[row for one in loop for row in one.rows] for loop in loops]
    group = _nodes(case, [*rows, *(sorted(one) for one in made)])
    count = np.array([len(loop) for loop in loops], np.int64)
    return DerivativeLoops(count, group, case.per_step(float(count.sum())))


def _runs(case: Analysis, passes: list[GraphPass]) -> list[tuple[int, int]]:
    """First pass of each loop of a step, and the one after its last."""
    ops = case.trace.ops
    sums = np.sort(ops.start_ns[case.ops_named(_SUM.__eq__)])
    alike = [False]
    for before, one in pairwise(passes):
        start, end = int(ops.start_ns[before.rows[0]]), int(ops.end_ns[one.rows].max())
        adds = np.searchsorted(sums, end) > np.searchsorted(sums, start)
        shared = len({*one.keys} & {*before.keys})
        enough = shared >= max(FEWEST_NODES, SAME_GRAPH_SHARE * max(len(one.keys), len(before.keys)))
        alike.append(enough and not adds and not (output_of(one) == output_of(before) and one.is_along_ones))
    edges = [at for at, same in enumerate(alike) if not same] + [len(passes)]
    return [(a, b) for a, b in pairwise(edges) if b - a >= FEWEST_PASSES]


def _nodes(case: Analysis, rows: list[list[int]]) -> I64:
    """Per node of the graph which of some lists of ops it belongs to; -1: none."""
    ops = case.trace.ops
    flat = np.array([row for one in rows for row in one], np.int64)
    which = np.repeat(np.arange(len(rows)), [len(one) for one in rows])
    found = nodes_in(case.graph, Stretches.of(ops, flat))
    return np.where(found >= 0, which[np.maximum(found, 0)], -1)
