"""Splits the mean step of a run without a GPU into its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.result.cpu_step import CpuStep
from gpuprof.timeline.intervals import clip, union
from gpuprof.timeline.phases import DATA
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.tracefile.trace import OP

if TYPE_CHECKING:
    from gpuprof.timeline.timeline import Timeline


def on_cpu(run: RunFolder | None) -> bool:
    """Whether a run used no GPU; False if it did not record what it ran on."""
    return run is not None and run.own.gpu is None and bool(run.own.versions)


def cpu_step(run: RunFolder, budget: Budget | None, timeline: Timeline | None) -> CpuStep | None:
    """The mean step of a run without a GPU, split; None if its steps were not timed."""
    if budget is None or budget.source != "free":
        return None
    rows = run.steps.rows("baseline_free", run.rank)
    waits = run.steps.data_ns[rows]
    usual = float(np.median(waits[waits >= 0])) if (waits >= 0).any() else 0.0
    beyond = {one.cause: one.mean_ns or 0 for one in budget.excess}
    waited = min(max(round(usual) + beyond.pop("input", 0), 0), budget.mean_ns)
    others = min(max(sum(beyond.values()), 0), budget.mean_ns - waited)
    return CpuStep(waited, budget.mean_ns - waited - others, others, None if timeline is None else _ops(timeline))


def _ops(timeline: Timeline) -> float | None:
    """Share of PyTorch's ops, on any thread, in the recorded steps' time outside the input; None if there is no such
    time."""
    ops, (low, high) = timeline.trace.ops, timeline.window
    data = timeline.host.op == DATA
    own = (ops.kind == OP) & ~data
    left = high - low - clip(union(ops.start_ns[data], ops.end_ns[data]), low, high).total
    if left <= 0 or not own.any():
        return None
    return min(clip(union(ops.start_ns[own], ops.end_ns[own]), low, high).total / left, 1.0)
