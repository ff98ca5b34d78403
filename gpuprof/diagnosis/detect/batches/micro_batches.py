"""Gradient accumulation in a recording: assigns work to a step's forward and backward passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.loops.small_op_loops import OPTIMIZER_STEP
from gpuprof.replay.graph import launcher_of
from gpuprof.timeline.intervals import Intervals
from gpuprof.tracefile.trace import I64

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis


def micro_batches(case: Analysis) -> int | None:
    """Backward passes per optimizer step; None if recorded steps differ, if there are none, or if weights are updated
    between two passes of a step (a generator and a discriminator): these are not of one gradient."""
    backward, steps = _passes(case), case.timeline.steps
    step = np.searchsorted(steps.start_ns, backward.end, side="left") - 1
    inside = (step >= 0) & (backward.end <= steps.end_ns[np.maximum(step, 0)])
    if _updated_between(case, backward.end[inside], step[inside]):
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
