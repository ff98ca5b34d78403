"""Backward passes that go through the same part of autograd's graph again: one for each loss, with `retain_graph`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.projection.changes.batch import ACCUMULATE
from gpuprof.replay.stretches import Stretches
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE, I64, OP, Mask
from gpuprof.units import Assumed, Ops

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_NODES: Assumed[Ops] = 20
"""Fewest autograd nodes that run again in a step: a part of a model has at least these."""
READS_GRADIENTS = frozenset(
    f"aten::{name}"
    for name in (
        "clone", "copy_", "zero_", "_foreach_zero_", "mul_", "div_", "add_", "mul", "norm", "linalg_vector_norm", "dot",
        "_foreach_norm", "_foreach_mul_", "view", "reshape", "flatten", "cat", "stack",
    )
)  # fmt: skip
"""Ops between two passes that use the gradients of a single loss (store, measure or project them), if they take a
tensor of a gradient's shape."""


@dataclass(frozen=True, slots=True)
class RepeatedBackward:
    """Work of autograd's engine that an earlier pass of the step did for the same ops."""

    again: Stretches
    """All runs of nodes but those of each node's first time in a step."""
    nodes: float
    """Number of autograd nodes that run again, per step, each counted once."""
    times: int
    """How often most of them run in a step."""


def find_repeated_backward(case: Analysis) -> RepeatedBackward | None:
    """Nodes of autograd's graph that run several times in a step and add to the same gradients; None if there are
    none, or if something between the passes uses the gradients of one loss: an optimizer, or a projection."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    engine = case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE))
    engine &= (ops.kind == OP) & (ops.start_ns >= low) & (ops.start_ns < high) & ~_differentiable(case)
    rows = np.flatnonzero(engine)
    rows = rows[np.lexsort((ops.start_ns[rows], ops.thread[rows]))]
    step = np.searchsorted(case.timeline.steps.start_ns, ops.start_ns[rows], side="right")
    known = (ops.sequence[rows] >= 0) & (ops.forward_thread[rows] > 0)
    key = np.stack([step, ops.forward_thread[rows], ops.sequence[rows], ops.name[rows]], axis=1)[known]
    if not len(key):
        return None
    _, which, count = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    which = which.ravel()
    many = count[count > 1]
    if len(many) < FEWEST_NODES * case.steps:
        return None
    order = np.argsort(ops.start_ns[rows[known]], kind="stable")
    first = np.zeros(len(which), bool)
    first[order[np.unique(which[order], return_index=True)[1]]] = True
    again = np.zeros(len(rows), bool)
    again[known] = ~first
    again = _with_sums(case, rows, known, again)
    runs = runs_of(case, rows, again)
    if not _adds(case, rows[again]) or _used_between(case, rows, which, known):
        return None
    return RepeatedBackward(runs, len(many) / case.steps, int(np.bincount(many).argmax()))


def _differentiable(case: Analysis) -> Mask:
    """Ops in backward passes whose gradients the loss depends on (forces, gradient penalties), on any thread."""
    ops, inner = case.trace.ops, case.timeline.host.differentiable
    found = np.zeros(len(ops), bool)
    for start, end in zip(inner.start.tolist(), inner.end.tolist(), strict=True):
        found |= (ops.start_ns >= start) & (ops.start_ns < end)
    return found


def _with_sums(case: Analysis, rows: I64, known: Mask, again: Mask) -> Mask:
    """With the sums into gradients that follow a repeated node: they have no number of their own."""
    last = np.maximum.accumulate(np.where(known, np.arange(len(rows)), -1))
    same = (last >= 0) & (case.trace.ops.thread[rows] == case.trace.ops.thread[rows[last]])
    return again | (~known & same & again[last])


def runs_of(case: Analysis, rows: I64, again: Mask) -> Stretches:
    """Runs of consecutive repeated nodes on a thread, with what the engine does between them."""
    ops = case.trace.ops
    breaks = (np.diff(ops.thread[rows], prepend=-1) != 0) | (np.diff(again, prepend=False))
    # A pass ends where the thread that called it continues: a long gap belongs to no run.
    backward = case.timeline.host.backward
    passes = np.searchsorted(np.sort(backward.start), ops.start_ns[rows], side="right")
    breaks |= np.diff(passes, prepend=-1) != 0
    run = np.cumsum(breaks)[again]
    mine = rows[again]
    at = np.flatnonzero(np.diff(run, prepend=-1))
    return Stretches(
        ops.thread[mine[at]].astype(np.int64),
        np.minimum.reduceat(ops.start_ns[mine], at),
        np.maximum.reduceat(ops.end_ns[mine], at),
    )


def _adds(case: Analysis, rows: I64) -> bool:
    """Whether repeated nodes add to gradients that exist: calls of `backward`, and not of `torch.autograd.grad`."""
    ops = case.trace.ops
    sums = np.zeros(len(ops), bool)
    sums[rows] = True
    sums &= case.ops_named(lambda name: name == ACCUMULATE)
    adds = case.ops_named(lambda name: name in ("aten::add_", "aten::add"))
    return bool((case.ops_within(sums) & adds).any())


def _used_between(case: Analysis, rows: I64, which: I64, known: Mask) -> bool:
    """Whether an optimizer or a use of gradients comes between the first and the last time of a node."""
    ops = case.trace.ops
    numbered = rows[known]
    repeated = np.bincount(which)[which] > 1
    shapes = {
        shape
        for dims in np.unique(
            ops.dims[np.flatnonzero(case.ops_named(lambda n: n == "torch::autograd::AccumulateGrad"))]
        )
        for shape in shapes_in(case, int(dims))
        if shape
    }
    inside = np.zeros(len(ops), bool)
    steps = np.searchsorted(case.timeline.steps.start_ns, ops.start_ns[numbered], side="right")
    for step in np.unique(steps[repeated]).tolist():
        mine = numbered[repeated & (steps == step)]
        inside |= (ops.start_ns >= ops.start_ns[mine].min()) & (ops.end_ns <= ops.end_ns[mine].max())
    engine_threads = np.unique(ops.thread[numbered])
    inside &= ~np.isin(ops.thread, engine_threads) | ~case.ops_within(_engine(case))
    if (inside & case.ops_named(lambda name: name.startswith("Optimizer."))).any():
        return True
    uses = np.flatnonzero(inside & case.ops_named(READS_GRADIENTS.__contains__) & (ops.kind == OP))
    return any(shape in shapes for dims in np.unique(ops.dims[uses]) for shape in shapes_in(case, int(dims))[:1])


def _engine(case: Analysis) -> Mask:
    return case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE))
