"""Long steps that recur at a fixed distance, looked for in all unprofiled steps of a run.

The free-running stretch may end after ten steps, between two evaluations. The steps that were timed in other stages
then say how often such a step comes and how long it takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.diagnosis.mean_step.baseline import EQUAL_WORK, FEWEST_PERIODIC, OUTLIER
from gpuprof.diagnosis.mean_step.budget import LEAST_CAUSE_SHARE
from gpuprof.diagnosis.mean_step.budget_model import LONG_STEP
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.tracefile.trace import ABSENT, F64, I64, Mask
from gpuprof.units import Assumed, Ratio, Share

KINDS = ("save", "evaluation", "logging")
"""Measured causes that programs do every N steps."""
BEFORE_THE_END = ("baseline_free", "baseline_sync", "sampling")
"""Stages without a profiler, except the last. Sampled steps take a little longer."""
REGULAR: Assumed[Share] = 0.8
"""Smallest share of the steps at the right distance that must be long."""
CLEARLY: Assumed[Ratio] = 2.0
REGULAR_WAITS: Assumed[Share] = 0.9
"""The first step of an epoch waits CLEARLY longer than this share of the other steps: starved workers make steps wait
in the middle of an epoch, too."""


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


def recurring(
    folder: RunFolder, stretch: I64, work: F64 | None = None, starts: Recurring | None = None
) -> dict[str, Recurring]:
    """Cause → its recurring steps, for causes that the free-running stretch met too rarely to know their cost; those of
    an unmeasured cause are `periodic`. Intervals that the program's settings give are known already.

    stretch: rows of the free-running stretch. work: of every step of the run, if known. starts: the result of
    `worker_starts`; these steps are left out.
    """
    steps, timed = folder.steps, _unprofiled(folder)
    rows, number, usual, excess = timed.rows, timed.number, timed.usual_ns, timed.excess_ns
    if len(rows) < FEWEST_PERIODIC or not len(stretch):
        return {}
    in_stretch = np.isin(rows, stretch)
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
    if starts is not None:
        long &= ~starts.at(number)
    if work is not None and np.isfinite(work[rows]).all():
        long &= np.abs(work[rows] - np.median(work[rows])) <= EQUAL_WORK * np.median(work[rows])
    one = _recurring(number, left, long, in_stretch)
    return found if one is None else {**found, "periodic": one}


@dataclass(frozen=True, slots=True)
class FullCollections:
    """Collections of all objects, which come again and again at no fixed distance."""

    every: int
    """Steps from one to the next, on average."""
    events_ns: F64
    """How much longer each timed one made its step, ns."""
    noticed_ns: float
    """Shorter ones do not count."""
    in_waits: float
    """Share of that time in which the training waited for a batch."""


def full_collections(folder: RunFolder) -> FullCollections | None:
    """Python's collections of all its objects in the unprofiled steps; None if they are rare, short, or in every step.

    They come whenever enough objects have been made, so that ten steps may have none.
    """
    steps, timed = folder.steps, _unprofiled(folder)
    if len(timed.rows) < FEWEST_PERIODIC:
        return None
    # What a step took longer bounds what a collection cost it: others ran before the step's clock, or behind the GPU.
    cost = np.minimum(steps.garbage_collection_ns[timed.rows].clip(0).astype(np.float64), timed.excess_ns)
    noticed_ns = (LONG_STEP - 1) * float(np.median(timed.usual_ns))
    long = cost > noticed_ns
    number = int(np.count_nonzero(long))
    every = round(len(cost) / max(number, 1))
    if number < FEWEST_PERIODIC or every < 2:
        return None
    waited = steps.data_ns[timed.rows].clip(0).astype(np.float64)
    in_waits = np.minimum(cost, (waited - np.median(waited)).clip(0))[long]
    return FullCollections(every, cost[long], noticed_ns, float(in_waits.sum() / cost[long].sum()))


def worker_starts(folder: RunFolder) -> Recurring | None:
    """The steps that start an epoch and with it new input workers; None if workers are kept, or if these steps do not
    wait for their batch longer than others.

    The DataLoader's length says how many steps an epoch has. Ending the last epoch's workers and starting new ones is
    no wait for a batch, but happens in the same step, so the excess of these steps is theirs, except what is measured
    of evaluating, saving and logging at the end of an epoch.
    """
    facts, steps, timed = folder.own.loader or {}, folder.steps, _unprofiled(folder)
    number, length = timed.number, facts.get("length")
    if not facts.get("num_workers") or facts.get("persistent_workers") is not False or not isinstance(length, int):
        return None
    passes = steps.micro_steps[timed.rows]
    batches = int(np.median(passes[passes > 0])) if (passes > 0).any() else 1
    every, rest = divmod(length, batches)
    if rest or every < 2 or len(number) < FEWEST_PERIODIC:
        return None
    waited = steps.data_ns[timed.rows].clip(0).astype(np.float64)
    sums = np.bincount(number % every, weights=waited, minlength=every)
    phase = int(np.argmax(sums / np.maximum(np.bincount(number % every, minlength=every), 1)))
    first = number % every == phase
    waits = waited > np.median(waited) + (LONG_STEP - 1) * timed.usual_ns
    hits, due = int(np.count_nonzero(waits & first)), int(np.count_nonzero(first))
    if hits < max(FEWEST_PERIODIC, REGULAR * due):
        return None
    if np.median(waited[first]) < CLEARLY * np.quantile(waited[~first], REGULAR_WAITS):
        return None
    known = np.sum([getattr(steps, f"{kind}_ns")[timed.rows].clip(0) for kind in KINDS], axis=0)
    return Recurring(every, phase, (timed.excess_ns - known)[first].clip(0))


@dataclass(frozen=True, slots=True)
class _Unprofiled:
    """All steps of one rank that were timed without a profiler, in order."""

    rows: I64
    number: I64
    usual_ns: F64
    """The median step of each step's stage."""
    excess_ns: F64
    """How much longer each took."""


def _unprofiled(folder: RunFolder) -> _Unprofiled:
    steps = folder.steps
    after = steps.rows("after", folder.rank)
    # Once its hooks are gone, the recorder measures no cause.
    after = after[steps.new_shapes[after] != ABSENT]
    rows = np.concatenate([*(steps.rows(stage, folder.rank) for stage in BEFORE_THE_END), after])
    rows = rows[~steps.profiled[rows]]
    rows = rows[np.argsort(steps.step[rows], kind="stable")]
    ns = np.where(steps.device_ns[rows] > 0, steps.device_ns[rows], steps.ns[rows]).astype(np.float64)
    usual = _usual(steps.stage[rows], ns)
    return _Unprofiled(rows, steps.step[rows], usual, (ns - usual).clip(0))


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
