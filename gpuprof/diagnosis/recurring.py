"""Long steps that recur at a fixed distance, looked for in all unprofiled steps of a run.

The free-running stretch may end after ten steps, between two evaluations. The steps that were timed in other stages
then say how often such a step comes and how long it takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.diagnosis.baseline import EQUAL_WORK, FEWEST_PERIODIC, OUTLIER
from gpuprof.diagnosis.budget import LEAST_CAUSE_SHARE
from gpuprof.diagnosis.budget_model import LONG_STEP
from gpuprof.tracefile.run import RunFolder
from gpuprof.tracefile.trace import ABSENT, F64, I64, Mask
from gpuprof.units import Assumed, Share

KINDS = ("save", "evaluation", "logging")
"""Measured causes that programs do every N steps."""
BEFORE_THE_END = ("baseline_free", "baseline_sync", "sampling")
"""Stages without a profiler, except the last. Sampled steps take a little longer."""
REGULAR: Assumed[Share] = 0.8
"""Smallest share of the steps at the right distance that must be long."""


@dataclass(frozen=True, slots=True)
class Recurring:
    """Steps that recur every `every` steps: those whose number leaves `phase` as the remainder."""

    every: int
    phase: int
    events_ns: F64
    """How much longer each timed one took than the usual step of its stage, ns."""

    def at(self, number: I64) -> Mask:
        """Which steps these are."""
        return number % self.every == self.phase


def recurring(folder: RunFolder, stretch: I64, work: F64 | None = None) -> dict[str, Recurring]:
    """Cause → its recurring steps, for causes that the free-running stretch met too rarely to know their cost; those of
    an unmeasured cause are `periodic`. Intervals that the program's settings give are known already.

    stretch: rows of the free-running stretch. work: of every step of the run, if known.
    """
    steps = folder.steps
    after = steps.rows("after", folder.rank)
    # Once its hooks are gone, the recorder measures no cause.
    after = after[steps.new_shapes[after] != ABSENT]
    rows = np.concatenate([*(steps.rows(stage, folder.rank) for stage in BEFORE_THE_END), after])
    rows = rows[~steps.profiled[rows]]
    rows = rows[np.argsort(steps.step[rows], kind="stable")]
    ns = np.where(steps.device_ns[rows] > 0, steps.device_ns[rows], steps.ns[rows]).astype(np.float64)
    if len(rows) < FEWEST_PERIODIC or not len(stretch):
        return {}
    usual = _usual(steps.stage[rows], ns)
    number, excess, in_stretch = steps.step[rows], (ns - usual).clip(0), np.isin(rows, stretch)
    found: dict[str, Recurring] = {}
    waited = steps.data_ns[rows].clip(0).astype(np.float64)
    known = (waited - np.median(waited)).clip(0)
    for kind in KINDS:
        took = getattr(steps, f"{kind}_ns")[rows].clip(0).astype(np.float64)
        known = known + took
        cost = np.minimum(took, excess)
        one = _recurring(number, cost, cost >= LEAST_CAUSE_SHARE * usual, in_stretch)
        if one is not None and kind not in folder.own.intervals:
            found[kind] = one
    known = known + steps.garbage_collection_ns[rows].clip(0) + steps.compile_ns[rows].clip(0)
    left = (excess - known).clip(0)
    long = (left > (LONG_STEP - 1) * usual) & (left >= excess / 2)
    if work is not None and np.isfinite(work[rows]).all():
        long &= np.abs(work[rows] - np.median(work[rows])) <= EQUAL_WORK * np.median(work[rows])
    one = _recurring(number, left, long, in_stretch)
    return found if one is None else {**found, "periodic": one}


def _usual(stage: NDArray[np.uint8], ns: F64) -> F64:
    """The median step of each step's stage, ns."""
    usual = np.empty(len(ns))
    for one in np.unique(stage):
        usual[stage == one] = np.median(ns[stage == one])
    return usual


def _recurring(number: I64, cost: F64, long: Mask, in_stretch: Mask) -> Recurring | None:
    if np.count_nonzero(long & in_stretch) >= FEWEST_PERIODIC:
        return None
    every = period(number[long], number)
    if every is None:
        return None
    phase = _phase(number[long], every)
    events = cost[long & (number % every == phase)]
    # One that took many times as long met something else, too.
    events = events[events <= OUTLIER * np.median(events)]
    return Recurring(every, phase, events)


def period(long: I64, timed: I64) -> int | None:
    """Steps from one long step to the next; None if they do not recur at a fixed distance.

    long, timed: numbers of the long steps and of all timed steps, ascending. A long step may be missing because it was
    not timed, and others may be long by chance, but most steps at that distance must be long.
    """
    if len(long) < FEWEST_PERIODIC:
        return None
    distances, counts = np.unique(np.diff(long), return_counts=True)
    every = int(distances[np.argmax(counts)])
    if every < 2:
        return None
    phase = _phase(long, every)
    hits = int(np.count_nonzero(long % every == phase))
    due = int(np.count_nonzero(timed % every == phase))
    return every if hits >= max(FEWEST_PERIODIC, REGULAR * due, len(long) / 2) else None


def _phase(number: I64, every: int) -> int:
    return int(np.argmax(np.bincount(number % every)))
