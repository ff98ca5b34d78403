"""How long a step takes without a profiler, estimated from the steps that a run timed before it was recorded.

Pure functions: durations and amounts of work in, a step time out. Durations are compared at equal work, because a
recorded window of long sequences and a baseline of short ones would otherwise look like a profiler that costs much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.diagnosis.budget_model import LONG_STEP
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Convention, Percentile, Ratio, Share, Steps

EQUAL_WORK: Assumed[Share] = 0.10
"""Steps whose work differs by less than this do the same work: a compute-bound step then differs by as much, which is
what steps of one program differ by anyway."""
FEWEST_OF_MEDIAN: Assumed[Steps] = 3
"""Steps that a median is trusted of where others, with other work, could be asked too."""
OUTLIER: Assumed[Ratio] = 5.0
"""A step this many times longer than the median had an evaluation or a checkpoint in it; work varies less."""
EXPLAINED = calibrated.EXPLAINED.value
"""Of how much steps differ (their variance) the least that a line over their work explains, if it is to say more than
that they differ: noise lies on some line, too."""
LINE_REACH: Assumed[Ratio] = 1.5
"""The line of time over work holds this far beyond the work that was measured: attention grows with the square."""
FEWEST_PERIODIC: Assumed[Steps] = 3
"""Long steps at one distance from each other, from which on they are no accident: those of a busy machine come at no
fixed distance."""
LOW_PERCENTILE: Convention[Percentile] = 10
HIGH_PERCENTILE: Convention[Percentile] = 90
"""Percentiles that are given as the spread."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step at a given amount of work."""

    ns: int
    low_ns: int
    high_ns: int
    steps: int
    equal_work: bool | None
    """None where the work is not known."""
    fitted: bool


def durations(ns: I64, device_ns: I64, stage_ns: int | None, stage_steps: int | None, on_gpu: bool) -> F64:
    """How long each step took, NaN where that is not known. One row per step of the stage.

    The events on the GPU's own timeline are right whoever is ahead. Host times of free-running steps are too short
    while the host runs ahead of the GPU; the whole stage, timed between two device synchronisations, then says how
    much is missing, and every step gets its part.
    """
    measured = np.where(device_ns > 0, device_ns, np.nan).astype(np.float64)
    if len(ns) and 2 * np.count_nonzero(device_ns > 0) >= len(ns):
        return measured
    host = np.where(ns > 0, ns, np.nan).astype(np.float64)
    total = float(np.nansum(host))
    if on_gpu and stage_ns and stage_steps == len(ns) and total > 0:
        host *= max(stage_ns / total, 1.0)
    return host


@dataclass(frozen=True, slots=True)
class Alike:
    """Steps that do a given amount of work, or are scaled to it, and how long such a step takes."""

    ns: F64
    found: float
    equal_work: bool | None
    fitted: bool = False


def step_time(
    ns: F64, work: F64 | None, target: float | None, others: tuple[F64, F64] | None = None
) -> StepTime | None:
    """A step with `target` work, estimated from steps that took `ns` for `work`; None if they do not show it.

    The median of the steps with equal work, each scaled to that work along the line of time over work; where these are
    few and others are not, that line itself. others: (ns, work) of steps of the same program that were timed in another
    way. They help to estimate how the time grows with work: of ten steps alone it may be little but noise.
    """
    alike = steps_alike(ns, work, target, others)
    return None if alike is None else _summary(alike)


def steps_alike(ns: F64, work: F64 | None, target: float | None, others: tuple[F64, F64] | None = None) -> Alike | None:
    """The steps that `step_time` goes by, in their order."""
    known = _usable(ns, None if target is None else work)
    if not known.any():
        return None
    ns = ns[known]
    if work is None or target is None:
        return Alike(ns, float(np.median(ns)), equal_work=None)
    work = work[known]
    equal = np.abs(work - target) <= EQUAL_WORK * target
    if np.count_nonzero(equal) >= FEWEST_OF_MEDIAN or equal.all():
        return _equal(ns[equal], work[equal], target, _slope(ns, work, others))
    fitted = _at(ns, work, target, others)
    if fitted is not None:
        return fitted
    return _equal(ns[equal], work[equal], target, 0.0) if equal.any() else None


def _equal(ns: F64, work: F64, target: float, slope: float) -> Alike:
    """Steps of nearly the wanted work, scaled to it: all of them can do a little less, or a little more.

    slope: ns that more work takes, of which no step takes more in proportion than all it does.
    """
    scaled = ns + np.minimum(slope, ns / work) * (target - work)
    return Alike(scaled, float(np.median(scaled)), equal_work=True)


def _slope(ns: F64, work: F64, others: tuple[F64, F64] | None) -> float:
    """How much longer steps take for more work; 0 where all do the same, or the work explains too little of how they
    differ."""
    start, slope = line(work, ns, _known_others(others))
    left, all_of_it = float(np.var(ns - start - slope * work)), float(np.var(ns))
    return slope if left <= (1 - EXPLAINED) * all_of_it else 0.0


def _known_others(others: tuple[F64, F64] | None) -> tuple[F64, F64] | None:
    if others is None:
        return None
    known = _usable(*others)
    return others[0][known], others[1][known]


def _usable(ns: F64, work: F64 | None) -> Mask:
    """Steps of which all is known, without outliers."""
    known = np.isfinite(ns) if work is None else np.isfinite(ns) & np.isfinite(work)
    if known.any():
        known &= np.where(np.isfinite(ns), ns, np.inf) <= OUTLIER * np.median(ns[known])
    return known


@dataclass(frozen=True, slots=True)
class RareStep:
    """A step that comes back every N steps and takes longer than those between."""

    every: int
    ns: int
    """What it takes, the median."""
    usual_ns: int
    """What the steps between take."""
    count: int
    """How many were seen."""


def rare_step(number: I64, ns: F64, waited_ns: F64) -> RareStep | None:
    """What comes back at a fixed distance in steps that are timed one after another; None if nothing does.

    number: of each step, ascending. ns: how long it took, NaN where not known. waited_ns: how much of that it waited
    for its batch, which workers bring at fixed distances, too.
    """
    known = np.isfinite(ns)
    number, ns, waited_ns = number[known], ns[known], waited_ns[known]
    if len(ns) <= FEWEST_PERIODIC:
        return None
    usual = float(np.median(ns))
    long = (ns > LONG_STEP * usual) & (2 * waited_ns < ns - usual)
    distance = np.diff(number[long])
    if np.count_nonzero(long) < FEWEST_PERIODIC or distance.min() != distance.max() or distance[0] < 2:
        return None
    return RareStep(int(distance[0]), round(float(np.median(ns[long]))), round(usual), int(np.count_nonzero(long)))


def line(work: F64, ns: F64, others: tuple[F64, F64] | None = None) -> tuple[float, float]:
    """(a, b) of the line ns = a + b · work with the least squares and b ≥ 0: more work never takes less time.

    others: (ns, work) of more points, on a line of the same slope b.
    """
    product = square = 0.0
    for one_work, one_ns in ((work, ns), *(((others[1], others[0]),) if others and len(others[0]) else ())):
        from_mean = one_work - one_work.mean()
        product += float(from_mean @ (one_ns - one_ns.mean()))
        square += float(from_mean @ from_mean)
    slope = max(product / square, 0.0) if square > 0 else 0.0
    return float(ns.mean()) - slope * float(work.mean()), slope


def _at(ns: F64, work: F64, target: float, others: tuple[F64, F64] | None) -> Alike | None:
    """The step read off the line, if there are enough different steps and the target is not far from them."""
    others = _known_others(others)
    seen = work if others is None else np.concatenate([work, others[1]])
    if (
        len(ns) < FEWEST_OF_MEDIAN
        or work.min() == work.max()
        or not seen.min() / LINE_REACH <= target <= seen.max() * LINE_REACH
    ):
        return None
    start, slope = line(work, ns, others)
    found = start + slope * target
    if found < 1:
        return None
    return Alike(ns - (start + slope * work) + found, found, equal_work=False, fitted=True)


def _summary(alike: Alike) -> StepTime:
    low, high = np.percentile(alike.ns, (LOW_PERCENTILE, HIGH_PERCENTILE))
    found = round(alike.found)
    return StepTime(
        ns=found,
        low_ns=max(min(round(float(low)), found), 0),
        high_ns=max(round(float(high)), found),
        steps=len(alike.ns),
        equal_work=alike.equal_work,
        fitted=alike.fitted,
    )
