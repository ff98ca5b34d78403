"""Python loops over samples, boxes or tensors: a few small ops that repeat, found in the recorded ops."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.loops.layer_ops import LARGE_OPS, ONCE_A_LAYER
from gpuprof.diagnosis.detect.loops.nested_loops import FEWEST_OPS, FEWEST_ROUNDS, loops_in, with_ends
from gpuprof.diagnosis.detect.passes import backward_of, shapes_in
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.timeline.cpu.view_ops import VIEWS
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import BACKWARD, DATA, FORWARD, GENERATION, RECOMPUTE
from gpuprof.tracefile.trace import ANNOTATION, F64, I64, OP, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

NOT_SMALL = LARGE_OPS | ONCE_A_LAYER
"""A repetition that contains one of these ops is a stack of layers."""
PRODUCTS = frozenset({"aten::matmul", "aten::mm", "aten::bmm"})
FILES = frozenset({"aten::set_"})
"""Op with which loading and saving create tensors, in loops that are not the user's."""
SPLITS = frozenset(
    f"aten::{name}" for name in ("chunk", "split", "split_with_sizes", "tensor_split", "unbind", "unsafe_split")
)
"""Ops that make one tensor a list: they take as long as the list is."""
JOINS = frozenset(f"aten::{name}" for name in ("cat", "concat", "concatenate", "hstack", "stack", "vstack"))
"""Ops that make a list one tensor."""
OPTIMIZER_STEP = "Optimizer.step#"


@dataclass(frozen=True, slots=True)
class SmallLoops:
    """Loops as stretches of time on the CPU; columns by loop."""

    stretches: Stretches
    rounds: I64
    last: Stretches
    """The last iteration of each loop."""
    one_round: F64
    """Share of a loop's ops that remain if ops over all iterations replace it: those of one iteration, with one
    iteration of each loop within it."""
    again: Stretches
    """Iterations of the loops within these loops, without the last iteration of each; columns by inner loop."""
    backward: Stretches
    """Autograd's work for each; empty for loops outside the forward pass."""
    together: I64 | None = None
    """Rounds that follow one another before Python does something else; 0 if no number is usual. None for loops over
    small ops, where it is not computed."""
    between: Stretches | None = None
    """The Python between two rounds."""


def find_small_loops(case: Analysis) -> SmallLoops | None:
    """Loops in the window; None if there are none. Computed once per case."""
    if "small_loops" not in case.memo:
        case.memo["small_loops"] = _find(case)
    return case.memo["small_loops"]


def some_of(loops: SmallLoops, which: Mask) -> SmallLoops:
    """The loops of a mask."""
    stretches, last, backward = (each.some(which) for each in (loops.stretches, loops.last, loops.backward))
    return SmallLoops(stretches, loops.rounds[which], last, loops.one_round[which], loops.again, backward)


def ops_of(case: Analysis, loops: SmallLoops, which: int) -> list[str]:
    """Names of the outermost ops of a loop's last iteration, each once, in order."""
    ops, last = case.trace.ops, loops.last
    rows = np.flatnonzero(
        (ops.thread == last.thread[which])
        & (ops.start_ns >= last.start_ns[which])
        & (ops.end_ns <= last.end_ns[which])
        & (ops.kind == OP)
    )
    parent = case.timeline.nesting.parent[rows]
    outer = rows[(parent < 0) | (ops.kind[parent] != OP) | (ops.start_ns[parent] < last.start_ns[which])]
    outer = outer[np.argsort(ops.start_ns[outer], kind="stable")]
    return list(dict.fromkeys(case.trace.strings[ops.name[row]] for row in outer.tolist()))


def _find(case: Analysis) -> SmallLoops | None:
    ops = case.trace.ops
    rows, family = own_ops(case)
    if len(rows) < FEWEST_OPS:
        return None
    names = ops.name[rows].astype(np.int64)
    bad = case.ops_named(lambda name: name in NOT_SMALL or name in FILES or not name.startswith("aten::"))[rows]
    bad &= ~_of_two_vectors(case, rows)
    found = loops_in(names, family, bad)
    if found is None:
        return None
    first, last = with_ends(found, family, _splits(case, rows), case.ops_named(lambda name: name in JOINS)[rows])

    def between(first: I64, last: I64) -> Stretches:
        return Stretches.of(ops, rows[first], rows[last])

    views = case.ops_named(lambda name: name in VIEWS)[rows]
    works = _launch(case, between(first, last))
    works |= ~np.array([views[a : b + 1].all() for a, b in zip(found.first, found.last, strict=True)], bool)
    works &= ~_around_passes(case, between(first, last), found.rounds)
    found, first, last = found.some(works), first[works], last[works]
    stretches, again = between(first, last), between(found.again_first, found.again_begin)
    thread, start, end = stretches.thread, stretches.start_ns, stretches.end_ns
    ahead = case.timeline.host.op[rows[found.first]] == FORWARD
    return SmallLoops(
        stretches,
        found.rounds,
        between(found.begin, found.last),
        found.one_round,
        Stretches(again.thread, again.start_ns, ops.start_ns[rows[found.again_begin]]),
        backward_of(case, Stretches(thread, start, np.where(ahead, end, start))),
    )


def _of_two_vectors(case: Analysis, rows: I64) -> Mask:
    """Multiplications that return a single value: the similarity of two samples, which no layer computes."""
    found = case.ops_named(PRODUCTS.__contains__)[rows]
    for at in np.flatnonzero(found).tolist():
        shapes = [shape for shape in shapes_in(case, int(case.trace.ops.dims[rows[at]])) if shape]
        found[at] = len(shapes) == 2 and prod(shapes[0][:-1]) == 1 and shapes[0][-1] == prod(shapes[1])
    return found


def _splits(case: Analysis, rows: I64) -> Mask:
    """Ops that split a tensor into a list with at least one tensor for each iteration of a loop."""
    found = case.ops_named(lambda name: name in SPLITS)[rows]
    for at in np.flatnonzero(found).tolist():
        shape = next(iter(shapes_in(case, int(case.trace.ops.dims[rows[at]]))), None)
        found[at] = shape is None or max(shape, default=0) >= FEWEST_ROUNDS
    return found


def _launch(case: Analysis, stretches: Stretches) -> Mask:
    """Whether each loop launches work on a GPU."""
    inside = nodes_in(case.graph, stretches)
    return np.bincount(inside[case.graph.on_gpu & (inside >= 0)], minlength=len(stretches)) > 0


def _around_passes(case: Analysis, stretches: Stretches, rounds: I64) -> Mask:
    """Whether most rounds of each loop call a backward pass, whose ops are not among the loop's."""
    begun = np.sort(case.timeline.host.backward.start)
    passes = np.searchsorted(begun, stretches.end_ns) - np.searchsorted(begun, stretches.start_ns)
    return 2 * passes > rounds


def own_ops(case: Analysis) -> tuple[I64, I64]:
    """(rows of the window's outermost ops outside autograd, optimizers and loaders; family of each: ops of one thread
    with the same enclosing range), in order of time by thread."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    nesting = case.timeline.nesting.parent
    mine = (ops.kind == OP) & ~np.isin(case.timeline.host.op, (BACKWARD, DATA, GENERATION, RECOMPUTE))
    mine &= (ops.start_ns >= low) & (ops.start_ns < high)
    rows = np.flatnonzero(mine)
    outer = climb(nesting[rows], nesting, ops.kind == OP)
    rows = rows[outer < 0]
    ranges = case.ops_named(lambda name: name.startswith(OPTIMIZER_STEP))
    rows = rows[climb(nesting[rows], nesting, ranges) < 0]
    around = climb(nesting[rows], nesting, ops.kind == ANNOTATION)
    order = np.lexsort((ops.start_ns[rows], ops.thread[rows]))
    rows, around = rows[order], around[order]
    changes = (np.diff(ops.thread[rows], prepend=-1) != 0) | (np.diff(around, prepend=-2) != 0)
    return rows, np.cumsum(changes)
