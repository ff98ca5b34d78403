"""Matrix multiplications in an optimizer's step: iterations that make a gradient orthogonal (Muon), and products with
preconditioners (Shampoo, SOAP).

An iteration begins with a norm, by which the gradient is divided so that the iteration converges, and multiplies
matrices of the gradient's sides alone. So the ops show how many gradients there are, and how many of one shape.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.loops.small_op_loops import OPTIMIZER_STEP
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.replay.stretches import Stretches
from gpuprof.timeline.phases import OPTIMIZER
from gpuprof.tracefile.trace import I64, OP, Mask
from gpuprof.units import Assumed, Ops

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

Shape = tuple[int, ...]
MATMULS = frozenset({"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"})
NORMS = frozenset({"aten::linalg_vector_norm", "aten::norm", "aten::linalg_matrix_norm"})
FEWEST_MATMULS: Assumed[Ops] = 6
"""Fewest matrix multiplications after a norm, of the sides of the same matrix, that are an iteration: two rounds of
three. A preconditioner multiplies a gradient twice and does not repeat it."""


@dataclass(frozen=True, slots=True)
class Iterations:
    """Iterations on one gradient each, in order of time; columns by iteration."""

    stretches: Stretches
    step: I64
    """Number of the optimizer's step that each is in, from 0."""
    shapes: tuple[Shape, ...]
    """Of what each is given, the shorter side of the matrix first: one transposes the others."""

    def of_one_shape(self) -> tuple[int, int]:
        """(iterations of the first optimizer's step, different shapes among them)."""
        first = [shape for shape, step in zip(self.shapes, self.step.tolist(), strict=True) if step == self.step[0]]
        return len(first), len(set(first))


def optimizer_nodes(case: Analysis) -> Mask:
    """Nodes of the graph in the phase of the optimizer's step."""
    return case.graph.phase == OPTIMIZER


def find_iterations(case: Analysis) -> Iterations | None:
    """Iterations of matrix multiplications in the optimizers' steps of the window; None where there are none."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    ranges = case.outermost(case.ops_named(lambda name: name.startswith(OPTIMIZER_STEP)))
    ranges = ranges[(ops.start_ns[ranges] >= low) & (ops.start_ns[ranges] < high)]
    wanted = (ops.kind == OP) & case.ops_named(lambda name: name in MATMULS or name in NORMS)
    begin, end, thread, number, shapes = [], [], [], [], []
    for row in ranges[np.argsort(ops.start_ns[ranges])].tolist():
        inside = wanted & (ops.thread == ops.thread[row])
        inside &= (ops.start_ns >= ops.start_ns[row]) & (ops.end_ns <= ops.end_ns[row])
        found = np.flatnonzero(inside)
        for norm, last, shape in _of_step(case, found[np.argsort(ops.start_ns[found], kind="stable")]):
            begin.append(int(ops.start_ns[norm]))
            end.append(int(ops.end_ns[last]))
            thread.append(int(ops.thread[row]))
            number.append(row)
            shapes.append(shape)
    if not begin:
        return None
    stretches = Stretches(np.array(thread, np.int64), np.array(begin, np.int64), np.array(end, np.int64))
    return Iterations(stretches, np.unique(np.array(number), return_inverse=True)[1], tuple(shapes))


def _of_step(case: Analysis, rows: I64) -> list[tuple[int, int, Shape]]:
    """(norm, last matrix multiplication, shape) of each iteration among an optimizer's norms and multiplications."""
    ops, strings = case.trace.ops, case.trace.strings
    names = [strings[i] for i in ops.name[rows].tolist()]
    norms = [at for at, name in enumerate(names) if name in NORMS]
    found = []
    for at, after in itertools.pairwise([*norms, len(rows)]):
        shape = next(iter(shapes_in(case, int(ops.dims[rows[at]]))), None)
        if after - at <= FEWEST_MATMULS or not shape or len(shape) < 2:
            continue
        sides = {*shape[-2:]}
        given = [one for row in rows[at + 1 : after].tolist() for one in shapes_in(case, int(ops.dims[row])) if one]
        if all({*one[-2:]} <= sides for one in given if len(one) > 1):
            found.append((int(rows[at]), int(rows[after - 1]), (*shape[:-2], *sorted(shape[-2:]))))
    return found
