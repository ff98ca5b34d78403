"""What a gradient scaler (torch.amp.GradScaler) adds to a step: it looks for overflows, and reads what it found."""

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
"""Range around a step of one of torch's optimizers, by the name of its class."""
UNSCALE = "aten::_amp_foreach_non_finite_check_and_unscale_"
UPDATE = "aten::_amp_update_scale_"
INVERSE = "aten::reciprocal"
"""Of the scale: the last op before the scaler collects all gradients in Python, and looks at them."""
OWN = frozenset({"aten::to", "aten::full", "aten::copy_"})
"""Ops of the scaler between the two."""
READ = "aten::item"


@dataclass(frozen=True, slots=True)
class GradientScaler:
    """Nodes of the graph that a gradient scaler is the reason for."""

    reads: Mask
    """Of the reads directly before a step of the optimizer, their waits included. A fused optimizer takes on the GPU
    what they ask for."""
    checks: Mask
    """Of looking for overflows, and of adapting the scale; without waits."""


def is_optimizer_step(text: str) -> bool:
    """Whether a range of this name is a step of an optimizer."""
    return STEP.match(text) is not None


def gradient_scaler(case: Analysis, ranges: Mask) -> GradientScaler | None:
    """The work of a gradient scaler; None where none is used. `ranges`: rows of the optimizer's steps."""
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
    """What a step without the scaler does not do."""
    return scaler.checks | (scaler.reads & ~graph.waits)


def _asks(case: Analysis, step: int, looks: I64, outer: I64) -> I64:
    """The read that is a thread's last op before a step of the optimizer, where overflows were looked for just before:
    `scaler.step` asks for them. Empty where the last op is another."""
    ops = case.trace.ops
    mine = outer[(ops.thread[outer] == ops.thread[step]) & (ops.end_ns[outer] <= ops.start_ns[step])]
    if not len(mine):
        return mine
    last = mine[np.argsort(ops.end_ns[mine], kind="stable")[-1:]]
    looked = (ops.thread[looks] == ops.thread[step]) & (ops.end_ns[looks] <= ops.start_ns[last])
    return last if looked.any() and case.trace.text(int(ops.name[last[0]])) == READ else last[:0]


def _stretches(case: Analysis, looks: I64, outer: I64) -> Stretches:
    """Host time from the end of the scale's inverse to that of each look for overflows, which the scaler collects the
    gradients in; the look alone where other ops than its own lie between."""
    ops, begun = case.trace.ops, case.trace.ops.start_ns[looks].copy()
    own, inverse = case.ops_named(OWN.__contains__), case.ops_named(INVERSE.__eq__)
    for at, row in enumerate(looks.tolist()):
        before = outer[(ops.thread[outer] == ops.thread[row]) & (ops.end_ns[outer] <= ops.start_ns[row])]
        before = before[np.argsort(ops.end_ns[before], kind="stable")]
        others = np.flatnonzero(~own[before])
        if len(others) and inverse[before[others[-1]]]:
            begun[at] = ops.end_ns[before[others[-1]]]
    return Stretches(ops.thread[looks].astype(np.int64), begun, ops.end_ns[looks])
