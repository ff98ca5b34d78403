"""A forward pass records what a backward pass needs, and no backward pass comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import slow as calibrated
from gpuprof.calibration.quoted import us
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import code
from gpuprof.replay.graph import Graph
from gpuprof.replay.unprofiled.host_pace import pace_and_spread
from gpuprof.timeline.phases import FORWARD
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE, I64, OP, Mask
from gpuprof.units import Assumed, Ops

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

FEWEST_OPS: Assumed[Ops] = 100
"""Fewest consecutive ops without a backward pass: shorter runs are of metrics, masks and weights that a step does not
use; a model has hundreds."""

PAGE = Page(
    id="no_grad",
    applies=("training",),
    title="A forward pass keeps activations for a backward pass that never runs",
    means="""
A teacher, a reference or reward model, or an evaluation in the middle of a step that is called without
`torch.no_grad()`: autograd creates a node for each op and keeps its inputs until the outputs are freed. That mainly
costs memory, often gigabytes, and some CPU time per op.
""",
    detected=f"""
Ops of the forward pass have numbers by which the backward pass finds them, and each op that autograd records uses one
up. If {FEWEST_OPS} or more in a row are used up and no op of a recorded backward pass has any of them, they were
recorded in vain. Forward passes after the last backward pass of the recording do not count.
""",
    gain=f"""
Each of these ops takes {us(calibrated.AUTOGRAD_NODE_NS.value)} µs less CPU time ({us(calibrated.AUTOGRAD_NODE_NS.low)}
to {us(calibrated.AUTOGRAD_NODE_NS.high)}, assumed), scaled by the CPU's speed as estimated from its shortest ops; GPU
work stays. So a GPU-bound step gains only memory, and the recording does not show how much.
""",
    wrong="""
Parts of a model that are trained only in other steps look the same. Outputs that are used without `detach()` in a
later step's loss need their gradients.
""",
)


@dataclass(frozen=True, slots=True)
class Unused:
    """Forward ops that record in vain."""

    ops: Mask
    """Those that autograd made a node for."""
    stretches: int
    """Number of stretches of consecutive ops."""


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes the same forward pass without autograd."""
    found = find_unused(case)
    if found is None:
        return
    nodes = np.append(found.ops, False)[case.graph.scope] & (case.graph.lane >= 0) & ~case.graph.waits
    if not nodes.any():
        return
    count = int(found.ops.sum())
    pace, _ = pace_and_spread(case.timeline)
    text = (
        f"{case.per_step(count):,.0f} ops a step, in {found.stretches / case.steps:,.3g} stretches, record a backward"
        " pass that never runs, and keep their inputs for it"
    )
    yield Proposal(
        title="no_grad around what is not trained",
        evidence=spans(case, text, nodes),
        fix=code("with torch.no_grad():\n    outputs = model(**batch)") + "  # the one whose outputs get no gradient",
        change=_change(nodes, pace * count, 1),
        best=_change(nodes, pace * count, 2),
        worst=_change(nodes, pace * count, 0),
    )


def find_unused(case: Analysis) -> Unused | None:
    """Stretches of forward ops without a backward pass; None without any, or where no backward pass was recorded."""
    ops = case.trace.ops
    engine = case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE)) & (ops.sequence >= 0)
    backward = (ops.forward_thread > 0) & (ops.sequence >= 0)
    if not engine.any() or not backward.any():
        return None
    low, high = case.timeline.window
    last = int(ops.start_ns[engine].max())
    ahead = (ops.kind == OP) & (ops.sequence >= 0) & (ops.forward_thread <= 0) & (case.timeline.host.op == FORWARD)
    rows = np.flatnonzero(
        ahead & (ops.thread == case.timeline.main_thread) & (ops.start_ns >= low) & (ops.start_ns < min(high, last))
    )
    if not len(rows):
        return None
    number = ops.sequence[rows]
    made = np.unique(number)
    # A number is used up by the op that has it last before the next one.
    used_up = np.append(np.diff(made) == 1, False)
    vain = used_up & ~np.isin(made, ops.sequence[backward])
    runs = [run for run in _runs(vain) if len(run) >= FEWEST_OPS]
    if not runs:
        return None
    numbers = made[np.concatenate(runs)]
    mine = rows[np.isin(number, numbers)]
    # Of the ops with one number the innermost, which comes last, makes the node.
    order = mine[np.lexsort((ops.start_ns[mine], ops.sequence[mine]))]
    makes = order[np.append(np.diff(ops.sequence[order]) != 0, True)]
    found = np.zeros(len(ops), bool)
    found[makes] = True
    return Unused(found, len(runs))


def _runs(flags: Mask) -> list[I64]:
    """Positions of flags that follow one another, run by run."""
    at = np.flatnonzero(flags)
    return np.split(at, np.flatnonzero(np.diff(at) > 1) + 1) if len(at) else []


def _change(nodes: Mask, count: float, level: int) -> Change:
    """Less CPU time of each of some ops, but never all of it. level: 0 takes off least."""
    taken = calibrated.AUTOGRAD_NODE_NS.rising[level] * count

    def change(graph: Graph) -> Graph:
        now = float(graph.duration_ns[nodes].sum())
        left = max(1 - taken / now, 0.5) if now > 0 else 1.0
        return graph.with_durations(np.where(nodes, left * graph.duration_ns, graph.duration_ns))

    return change


FINDING = Declaration(
    page=PAGE,
    find=find,
    synonyms=("inference_mode", "requires_grad", "unused_gradients"),
    titles=("no_grad_around_what_is_not_trained",),
)
