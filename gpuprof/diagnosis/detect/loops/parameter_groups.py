"""Optimizers that step one parameter group after another, each with its own launches and Python."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.costs.formulas.gemm import is_matmul
from gpuprof.replay.stretches import Stretches, place
from gpuprof.tracefile.trace import I64, OP, Mask
from gpuprof.units import Assumed, Entries, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LISTS = (re.compile(r"^aten::_fused_"), re.compile(r"^aten::_foreach_"))
"""Ops on all tensors of a group: one call for each group, or several of each name."""
FEWEST_GROUPS: Assumed[Entries] = 16
"""Fewest parameter groups that are worth a look: a rate for each layer, with and without decay, takes that many."""
MOST_DISTINCT: Assumed[Share] = 0.5
"""Most groups with settings of their own, as a share of all, for merging the others to be worth a look."""


@dataclass(frozen=True, slots=True)
class ParameterGroups:
    """Steps of an optimizer in the window."""

    steps: Stretches
    count: int
    """Groups of a step."""
    left: tuple[float, float, float]
    """Share of the groups that remains if groups with the same settings are merged: best, expected, worst."""
    known: bool
    """Whether the run says how many settings differ."""


def find_parameter_groups(case: Analysis, ranges: Mask) -> ParameterGroups | None:
    """Many groups with few distinct settings; None if there are few groups, or if all differ. `ranges`: mask of the
    optimizers' steps."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    rows = np.flatnonzero(ranges & (ops.start_ns >= low) & (ops.end_ns <= high))
    steps = Stretches.of(ops, rows)
    counts = _counts(case, steps)
    many = (counts >= FEWEST_GROUPS) & ~_multiply(case, steps)
    if not many.any():
        return None
    count = int(np.median(counts[many]))
    some = steps.some(many)
    optimizer = (case.run.optimizer or {}) if case.run else {}
    groups, distinct = optimizer.get("groups"), optimizer.get("distinct_groups")
    # Tensors of several types or devices in a group are several calls.
    if isinstance(groups, int) and isinstance(distinct, int) and distinct > 0 and FEWEST_GROUPS <= groups <= count:
        left = distinct / groups
        return ParameterGroups(some, count, (left, left, left), True) if left <= MOST_DISTINCT else None
    best, usual, worst = (min(number / count, 1.0) for number in calibrated.GROUPS_LEFT.rising)
    return ParameterGroups(some, count, (best, usual, worst), False)


def _multiply(case: Analysis, steps: Stretches) -> Mask:
    """Whether matrices are multiplied in each step: the rule of an optimizer for one matrix after another, such as
    Muon's, which no group merges."""
    ops = case.trace.ops
    rows = np.flatnonzero(case.ops_named(is_matmul) & (ops.kind == OP))
    where = place(steps, ops.thread[rows].astype(np.int64), ops.start_ns[rows])
    return np.bincount(where[where >= 0], minlength=len(steps)) > 0


def _counts(case: Analysis, steps: Stretches) -> I64:
    """Number of groups in each step: its fused ops, or else the calls of the rarest of its ops on lists."""
    ops = case.trace.ops
    found = np.zeros(len(steps), np.int64)
    for pattern in LISTS:
        rows = np.flatnonzero(case.ops_named(pattern.match) & (ops.kind == OP))
        where = place(steps, ops.thread[rows].astype(np.int64), ops.start_ns[rows])
        rows, where = rows[where >= 0], where[where >= 0]
        names, name = np.unique(ops.name[rows], return_inverse=True)
        table = np.zeros((len(steps), len(names)), np.int64)
        np.add.at(table, (where, name), 1)
        least = np.where(table > 0, table, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
        found = np.where((found == 0) & (table.sum(axis=1) > 0), least, found)
    return found
