"""Python loops over samples, boxes or tensors: a few small ops that repeat, found in the recorded ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.loops.expert_loops import OF_LAYERS, PRODUCTS
from gpuprof.diagnosis.detect.passes import backward_of
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import BACKWARD, DATA, FORWARD, GENERATION, RECOMPUTE
from gpuprof.tracefile.trace import ANNOTATION, I64, OP, Mask
from gpuprof.units import Assumed, Ops, Rounds, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

MOST_PERIOD: Assumed[Ops] = 48
"""Most ops in one iteration of a loop without a loop inside; longer ones are parts of a model."""
MOST_OUTER: Assumed[Ops] = 160
"""Most ops in one iteration of an outer loop, each loop inside counted as one of its own iterations."""
FEWEST_ROUNDS: Assumed[Rounds] = 8
"""Fewest iterations of a loop. Chunks of a tensor, and terms of a loss, are fewer."""
FEWEST_OPS: Assumed[Ops] = 32
"""Fewest ops of a loop, over all iterations."""
LAYERS = OF_LAYERS | PRODUCTS | {"aten::convolution", "aten::conv2d", "aten::_scaled_mm", "aten::native_layer_norm"}
"""Ops of a model's layers: a repetition that contains one is a stack of layers, each of which needs the result of the
previous one."""
MOST_BETWEEN: Assumed[Share] = 0.25
"""Most ops between two loops, as a share of the shorter one's, that are one loop over both: a loop in a loop, or one
with an iteration that takes another branch."""
FILES = frozenset({"aten::set_"})
"""Op with which loading and saving create tensors, in loops that are not the user's."""
VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        *("alias", "as_strided", "chunk", "detach", "expand", "flatten", "lift_fresh", "narrow", "permute", "reshape"),
        *("select", "slice", "split", "squeeze", "t", "to", "transpose", "unbind", "unflatten", "unsqueeze", "view"),
    )
)
"""Ops that launch nothing where they only describe a tensor in another way: a fused op needs them, too."""
OPTIMIZER_STEP = "Optimizer.step#"


@dataclass(frozen=True, slots=True)
class SmallLoops:
    """Loops as stretches of time on the CPU; columns by loop."""

    stretches: Stretches
    rounds: I64
    last: Stretches
    """The last iteration of each."""
    backward: Stretches
    """Autograd's work for each; empty for loops outside the forward pass."""
    together: I64 | None = None
    """Rounds that follow one another before Python does something else; 0 where no number stands out. None: not known
    for loops over small ops."""
    between: Stretches | None = None
    """The Python between two rounds."""


def find_small_loops(case: Analysis) -> SmallLoops | None:
    """Loops in the window; None if there are none. Computed once per case."""
    if "small_loops" not in case.memo:
        case.memo["small_loops"] = _find(case)
    return case.memo["small_loops"]


def some_of(loops: SmallLoops, which: Mask) -> SmallLoops:
    """The loops of a mask."""
    stretches, last, backward = (_some(each, which) for each in (loops.stretches, loops.last, loops.backward))
    return SmallLoops(stretches, loops.rounds[which], last, backward)


def _some(each: Stretches, which: Mask) -> Stretches:
    return Stretches(each.thread[which], each.start_ns[which], each.end_ns[which])


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
    rows, family = _own_ops(case)
    if len(rows) < FEWEST_OPS:
        return None
    names = ops.name[rows].astype(np.int64)
    bad = case.ops_named(lambda name: name in LAYERS or name in FILES or not name.startswith("aten::"))[rows]
    first, rounds, begin, last = found_loops(names, family, bad)
    if not len(first):
        return None
    stretches = Stretches(ops.thread[rows[first]].astype(np.int64), ops.start_ns[rows[first]], ops.end_ns[rows[last]])
    views = case.ops_named(lambda name: name in VIEWS)[rows]
    works = _launch(case, stretches) | ~np.array([views[a : b + 1].all() for a, b in zip(first, last, strict=True)])
    first, rounds, begin, last = first[works], rounds[works], begin[works], last[works]
    stretches = _some(stretches, works)
    thread, start, end = stretches.thread, stretches.start_ns, stretches.end_ns
    ahead = case.timeline.host.op[rows[first]] == FORWARD
    return SmallLoops(
        stretches,
        rounds,
        Stretches(thread, ops.start_ns[rows[begin]], end),
        backward_of(case, Stretches(thread, start, np.where(ahead, end, start))),
    )


def _launch(case: Analysis, stretches: Stretches) -> Mask:
    """Whether each loop launches work on a GPU."""
    inside = nodes_in(case.graph, stretches)
    return np.bincount(inside[case.graph.on_gpu & (inside >= 0)], minlength=len(stretches)) > 0


def _own_ops(case: Analysis) -> tuple[I64, I64]:
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


def found_loops(names: I64, family: I64, bad: Mask) -> tuple[I64, I64, I64, I64]:
    """(first position, rounds, begin of the last round, last position) of the loops: of a loop in a loop the outer
    one, whose rounds differ only by how often the inner ones go round."""
    simple = repeated(names, family, bad, MOST_PERIOD, FEWEST_ROUNDS, FEWEST_OPS)
    first, _, rounds, begin, last = joined(names, family, bad, *simple)
    around = _outer(names, family, bad, first, last)
    inside = np.zeros(len(first), bool)
    for start, _, _, end in around:
        inside |= (first >= start) & (last <= end)
    columns = [np.stack([first, rounds, begin, last], 1)[~inside], np.array(around, np.int64).reshape(-1, 4)]
    found = np.concatenate(columns)
    found = found[np.argsort(found[:, 0], kind="stable")]
    return found[:, 0], found[:, 1], found[:, 2], found[:, 3]


def _outer(names: I64, family: I64, bad: Mask, first: I64, last: I64) -> list[tuple[int, int, int, int]]:
    """Loops around others, as `found_loops` returns them: what repeats once each repetition is left out but for its
    first round. Each has some of the loops `first` to `last` inside, in less than the whole of it."""
    if not len(first):
        return []
    kept = np.ones(len(names), bool)
    for at, ops, times in zip(*(column.tolist() for column in repeated(names, family, bad, MOST_PERIOD, 2, 2)),
                              strict=True):  # fmt: skip
        kept[at + ops : at + ops * times] = False
    at = np.append(np.flatnonzero(kept), len(names))
    rows = at[:-1]
    found = repeated(names[rows], family[rows], bad[rows], MOST_OUTER, FEWEST_ROUNDS, FEWEST_OPS)
    around = []
    for one, ops, times in zip(*(column.tolist() for column in found), strict=True):
        start, begin, end = int(at[one]), int(at[one + ops * (times - 1)]), int(at[one + ops * times]) - 1
        inner = ((last - first + 1)[(first >= start) & (last <= end)]).tolist()
        if inner and max(inner) < (1 - MOST_BETWEEN) * (end - start + 1):
            around.append((start, times, begin, end))
    return around


def repeated(
    names: I64, family: I64, bad: Mask, most_period: int, fewest_rounds: int, fewest_ops: int
) -> tuple[I64, I64, I64]:
    """(first position, period, rounds) of each repetition, the shortest period first; they do not overlap."""
    free = ~bad
    found: list[tuple[int, int, int]] = []
    for period in range(1, most_period + 1):
        if period >= len(names):
            break
        same = (names[period:] == names[:-period]) & (family[period:] == family[:-period])
        same &= free[period:] & free[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            rounds = (end - start) // period + 1
            whole = slice(start, start + rounds * period)
            if rounds < fewest_rounds or rounds * period < fewest_ops or not free[whole].all():
                continue
            found.append((start, period, rounds))
            free[whole] = False
    found.sort()
    columns = np.array(found, np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def joined(names: I64, family: I64, bad: Mask, first: I64, period: I64, rounds: I64) -> tuple[I64, I64, I64, I64, I64]:
    """(first position, period, rounds, begin of the last round, last position) of loops of which those with the same
    ops, one after another in the same range, are one. `first` ascends."""
    body = [sorted(names[at : at + ops].tolist()) for at, ops in zip(first.tolist(), period.tolist(), strict=True)]
    length = period * rounds
    blocked = np.append(0, np.cumsum(bad))
    found: list[list[int]] = []
    before = -1
    for one, (at, ops, times) in enumerate(zip(first.tolist(), period.tolist(), rounds.tolist(), strict=True)):
        end = at + ops * times
        if found:
            last = found[-1][4] + 1
            near = at - last <= MOST_BETWEEN * min(length[before], length[one])
            same = body[before] == body[one] and family[found[-1][0]] == family[end - 1]
            if near and same and blocked[last] == blocked[at]:
                found[-1][2:] = [found[-1][2] + (at - last) // ops + times, end - ops, end - 1]
                before = one
                continue
        found.append([at, ops, times, end - ops, end - 1])
        before = one
    columns = np.array(found, np.int64).reshape(-1, 5)
    return columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 3], columns[:, 4]
