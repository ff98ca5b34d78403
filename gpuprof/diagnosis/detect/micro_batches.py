"""Gradient accumulation in a recording: which work belongs to which of a step's forward and backward passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.replay.graph import launcher_of
from gpuprof.timeline.intervals import Intervals
from gpuprof.tracefile.trace import I64

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis


def micro_batches(case: Analysis) -> int | None:
    """Backward passes of an optimizer step; None where recorded steps differ in it, or none was recorded."""
    backward, steps = _passes(case), case.timeline.steps
    step = np.searchsorted(steps.start_ns, backward.end, side="left") - 1
    inside = (step >= 0) & (backward.end <= steps.end_ns[np.maximum(step, 0)])
    counts = np.bincount(step[inside], minlength=len(steps.start_ns))
    if not len(counts) or counts.min() != counts.max() or not counts.min():
        return None
    return int(counts[0])


def _passes(case: Analysis) -> Intervals:
    """Backward passes that end a micro-batch: all but those that a loss needs (forces, gradient penalties)."""
    backward, inner = case.timeline.host.backward, case.timeline.host.differentiable
    whole = ~np.isin(backward.start, inner.start)
    return Intervals(backward.start[whole], backward.end[whole])


def micro_batch_of(case: Analysis, count: int) -> I64:
    """Per node of the graph the number of the pass that it belongs to, 0 to count - 1 within its step; -1 for what
    follows the last backward pass of a step (clipping, the optimizer).

    A pass begins where the backward pass before it ended, and so contains fetching its batch. Work on the GPU belongs
    to the pass that launched it. count: passes of a step, as `micro_batches` found them.
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
