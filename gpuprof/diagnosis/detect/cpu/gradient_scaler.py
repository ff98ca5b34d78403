"""The cost of a gradient scaler (torch.amp.GradScaler): it checks gradients for overflow, and reads the result."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.tracefile.trace import ANNOTATION, I64, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

STEP = re.compile(r"^Optimizer\.step#(\w+)\.step")
"""Name of the range around a step of one of torch's optimizers, with the class."""
UNSCALE = "aten::_amp_foreach_non_finite_check_and_unscale_"
UPDATE = "aten::_amp_update_scale_"
INVERSE = "aten::reciprocal"
"""Op on the scale: the last one before the scaler collects all gradients in Python and checks them."""
OWN = frozenset({"aten::to", "aten::full", "aten::copy_"})
"""Ops of the scaler between INVERSE and UNSCALE."""
READ = "aten::item"


@dataclass(frozen=True, slots=True)
class GradientScaler:
    """Nodes of the graph that are there because of a gradient scaler."""

    reads: Mask
    """Nodes of the reads directly before a step of the optimizer, including their waits. A fused optimizer uses the
    value on the GPU instead."""
    checks: Mask
    """Nodes that check for overflow and update the scale, without waits."""


def is_optimizer_step(text: str) -> bool:
    """Whether a range of this name is an optimizer's step."""
    return STEP.match(text) is not None


def gradient_scaler(case: Analysis, ranges: Mask) -> GradientScaler | None:
    """The work of a gradient scaler; None if none is used. `ranges`: mask of the optimizer's steps."""
    ops = case.trace.ops
    looks = np.flatnonzero(case.ops_named(lambda text: text == UNSCALE))
    if not len(looks):
        return None
    outer = case.outermost(ops.kind != ANNOTATION)
    reads = np.zeros(len(ops), bool)
    for row in np.flatnonzero(ranges).tolist():
        reads[_asks(case, row, looks, outer)] = True
    updates = case.ops_within(case.ops_named(lambda text: text == UPDATE))
    graph = case.graph
    checks = nodes_in(graph, _stretches(case, looks, outer)) >= 0
    checks |= np.append(updates, False)[graph.scope]
    return GradientScaler(np.append(case.ops_within(reads), False)[graph.scope], checks & ~graph.waits)


def without_checks(scaler: GradientScaler, graph: Graph) -> Mask:
    """Nodes that a step without the scaler does not have."""
    return scaler.checks | (scaler.reads & ~graph.waits)


def _asks(case: Analysis, step: int, looks: I64, outer: I64) -> I64:
    """The read in `scaler.step`: the thread's last op before a step of the optimizer, after a check for overflow. Empty
    if the last op is another."""
    ops = case.trace.ops
    mine = outer[(ops.thread[outer] == ops.thread[step]) & (ops.end_ns[outer] <= ops.start_ns[step])]
    if not len(mine):
        return mine
    last = mine[np.argsort(ops.end_ns[mine], kind="stable")[-1:]]
    looked = (ops.thread[looks] == ops.thread[step]) & (ops.end_ns[looks] <= ops.start_ns[last])
    return last if looked.any() and case.trace.text(int(ops.name[last[0]])) == READ else last[:0]


def _stretches(case: Analysis, looks: I64, outer: I64) -> Stretches:
    """CPU time in which the scaler collects the gradients: from the end of the scale's inverse to the end of each check
    for overflow; only the check if other ops lie in between."""
    ops, begun = case.trace.ops, case.trace.ops.start_ns[looks].copy()
    own, inverse = case.ops_named(OWN.__contains__), case.ops_named(INVERSE.__eq__)
    for at, row in enumerate(looks.tolist()):
        before = outer[(ops.thread[outer] == ops.thread[row]) & (ops.end_ns[outer] <= ops.start_ns[row])]
        before = before[np.argsort(ops.end_ns[before], kind="stable")]
        others = np.flatnonzero(~own[before])
        if len(others) and inverse[before[others[-1]]]:
            begun[at] = ops.end_ns[before[others[-1]]]
    return Stretches(ops.thread[looks].astype(np.int64), begun, ops.end_ns[looks])
