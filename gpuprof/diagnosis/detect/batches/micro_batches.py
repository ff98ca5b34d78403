"""Gradient accumulation in a recording: assigns work to a step's forward and backward passes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.costs.arguments import nested_shapes
from gpuprof.diagnosis.detect.loops.layer_ops import CONVOLUTIONS
from gpuprof.diagnosis.detect.loops.small_op_loops import OPTIMIZER_STEP
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.replay.graph import launcher_of
from gpuprof.timeline.intervals import Intervals
from gpuprof.timeline.nesting import climb
from gpuprof.tracefile.trace import I64, OP, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis


WRITES = re.compile(r"^aten::(_foreach_)?(add|sub|mul|div|copy|zero|lerp|addcmul|addcdiv)_$")
"""Ops that change a tensor in place."""
WEIGHT_AT = {"aten::linear": 1, "aten::addmm": 2, "aten::embedding": 0, **dict.fromkeys(sorted(CONVOLUTIONS), 1)}
"""Op → place of its weight among its arguments."""


def micro_batches(case: Analysis) -> int | None:
    """Backward passes per optimizer step; None if recorded steps differ, if there are none, or if weights or gradients
    are changed between two passes of a step (a generator and a discriminator; weights that are moved along their
    gradients and back, for adversarial samples or flat minima): these are not of one gradient."""
    if "micro_batches" not in case.memo:
        case.memo["micro_batches"] = _count(case)
    return case.memo["micro_batches"]


def _count(case: Analysis) -> int | None:
    backward, steps = _passes(case), case.timeline.steps
    step = np.searchsorted(steps.start_ns, backward.end, side="left") - 1
    inside = (step >= 0) & (backward.end <= steps.end_ns[np.maximum(step, 0)])
    if _updated_between(case, backward.end[inside], step[inside]) or _moved_between(case, backward, step, inside):
        return None
    counts = np.bincount(step[inside], minlength=len(steps.start_ns))
    if not len(counts) or counts.min() != counts.max() or not counts.min():
        return None
    return int(counts[0])


def _updated_between(case: Analysis, ends: I64, step: I64) -> bool:
    """Whether an optimizer steps between two backward passes of one step. ends: of the passes; step: of each."""
    ops = case.trace.ops
    updates = np.sort(ops.start_ns[case.ops_named(lambda name: name.startswith(OPTIMIZER_STEP))])
    before = np.searchsorted(updates, ends)
    return bool(((np.diff(before) > 0) & (np.diff(step) == 0)).any())


def _moved_between(case: Analysis, backward: Intervals, step: I64, inside: Mask) -> bool:
    """Whether the program writes tensors of weights' shapes in place between two backward passes of one step, without
    a node of autograd. backward: the passes; step: of each; inside: those that lie within their step."""
    if len(step) < 2:
        return False
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    rows = np.flatnonzero(case.ops_named(lambda name: bool(WRITES.match(name))) & (ops.kind == OP))
    rows = rows[ops.thread[rows] == case.timeline.main_thread]
    rows = rows[climb(parent[rows], parent, ops.kind == OP) < 0]  # not a cast within another op
    after = np.searchsorted(backward.end, ops.start_ns[rows], side="right") - 1
    last = len(step) - 1
    between = (after >= 0) & (after < last)
    after = np.clip(after, 0, last - 1)
    between &= ops.start_ns[rows] < backward.start[after + 1]
    between &= inside[after] & inside[after + 1] & (step[after] == step[after + 1])
    rows = rows[between]
    if not len(rows):
        return False
    weights = _weight_shapes(case)
    written = [row for row in rows.tolist() if weights & set(_first_shapes(case, row))]
    return any(not _is_node(case, row) for row in written)


def _weight_shapes(case: Analysis) -> set[tuple[int, ...]]:
    """Shapes of the weights that layers are given."""
    ops, strings, found = case.trace.ops, case.trace.strings, set[tuple[int, ...]]()
    rows = np.flatnonzero(case.ops_named(WEIGHT_AT.__contains__))
    for name, dims in set(zip(ops.name[rows].tolist(), ops.dims[rows].tolist(), strict=True)):
        at = WEIGHT_AT[strings[name]]
        found.update(shape for shape in shapes_in(case, dims)[at : at + 1] if shape and len(shape) > 1)
    return found


def _first_shapes(case: Analysis, row: int) -> list[tuple[int, ...]]:
    """Shapes of the tensors that an op writes: its first argument, or those of a list."""
    return next(iter(nested_shapes(case.trace.text(int(case.trace.ops.dims[row])))), [])


def _is_node(case: Analysis, row: int) -> bool:
    """Whether autograd records an op: then it uses up its number, and the next op has another one."""
    ops = case.trace.ops
    if ops.sequence[row] < 0:
        return False
    later = (ops.thread == ops.thread[row]) & (ops.start_ns >= ops.end_ns[row]) & (ops.sequence >= 0) & (ops.kind == OP)
    later &= ops.forward_thread <= 0
    return bool(later.any()) and int(ops.sequence[later][np.argmin(ops.start_ns[later])]) != int(ops.sequence[row])


def _passes(case: Analysis) -> Intervals:
    """Backward passes that end a micro-batch: all except those inside a loss (forces, gradient penalties)."""
    backward, inner = case.timeline.host.backward, case.timeline.host.differentiable
    whole = ~np.isin(backward.start, inner.start)
    return Intervals(backward.start[whole], backward.end[whole])


def micro_batch_of(case: Analysis, count: int) -> I64:
    """Number of the pass that each node belongs to, 0 to count - 1 within its step; -1 after the last backward pass of
    a step (clipping, the optimizer).

    A pass begins when the previous backward pass ends, and so includes fetching its batch. GPU work belongs to the pass
    that launched it. count: passes per step, from `micro_batches`.
    """
    graph, low = case.graph, case.timeline.window[0]
    ends = _passes(case).end.astype(np.float64) - low
    starts = case.timeline.steps.start_ns.astype(np.float64) - low
    source = launcher_of(graph)
    moment = np.where(source >= 0, graph.recorded_start_ns[source], graph.recorded_start_ns)
    before = np.searchsorted(ends, moment, side="right")
    first = np.searchsorted(ends, starts, side="right")
    number = before - first[np.clip(graph.step, 0, len(first) - 1)]
    return np.where((number >= 0) & (number < count), number, -1)
