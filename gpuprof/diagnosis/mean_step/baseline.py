"""How long a step takes without a profiler, estimated from the steps that a run timed before it was recorded.

Pure functions: durations and amounts of work in, a step time out. Durations are compared at equal work, because a
recorded window of long sequences and a baseline of short ones would otherwise look like a profiler that costs much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.diagnosis.mean_step.budget_model import LONG_STEP
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Convention, Percentile, Ratio, Share, Steps

EQUAL_WORK: Assumed[Share] = 0.10
"""Steps whose work differs by less than this count as equal work: a compute-bound step then differs by the same share,
which is no more than the scatter between steps of one program."""
FEWEST_OF_MEDIAN: Assumed[Steps] = 3
"""Fewest steps whose median is used when steps with other work are available too."""
OUTLIER: Assumed[Ratio] = 5.0
"""A step this many times as long as the median contained an evaluation or a checkpoint; work varies less than that."""
LINE_REACH: Assumed[Ratio] = 1.5
"""The line of time over work is trusted up to this factor beyond the measured work: attention grows with the square."""
FEWEST_PERIODIC: Assumed[Steps] = 3
"""Fewest long steps at equal distances that count as periodic: long steps caused by a busy machine come at irregular
distances."""
LOW_PERCENTILE: Convention[Percentile] = 10
HIGH_PERCENTILE: Convention[Percentile] = 90
"""Percentiles reported as the spread."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of a step with a given amount of work."""

    ns: int
    low_ns: int
    high_ns: int
    steps: int
    equal_work: bool | None
    """None if the work is unknown."""
    fitted: bool


def durations(ns: I64, device_ns: I64, stage_ns: int | None, stage_steps: int | None, on_gpu: bool) -> F64:
    """How long each step took, ns, NaN if unknown. One row per step of the stage.

    CUDA events are right in any case. CPU times of free-running steps are too short while the CPU runs ahead of the
    GPU; the time of the whole stage, measured between two device synchronisations, then says how much is missing, and
    every step is scaled by that.
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
    """Steps with a given amount of work, or scaled to it, and the time of such a step."""

    ns: F64
    found: float
    equal_work: bool | None
    fitted: bool = False


def step_time(
    ns: F64, work: F64 | None, target: float | None, others: tuple[F64, F64] | None = None
) -> StepTime | None:
    """The time of a step with `target` work, estimated from steps that took `ns` for `work`; None if they cannot say.

    This is the median of the steps with equal work, each scaled to `target` along the line of time over work. If too
    few steps have equal work, the line itself is used. others: (ns, work) of steps of the same program that were timed
    in another way. They improve the slope, which is mostly noise if it is fitted to ten steps.
    """
    alike = steps_alike(ns, work, target, others)
    return None if alike is None else _summary(alike)


def steps_alike(ns: F64, work: F64 | None, target: float | None, others: tuple[F64, F64] | None = None) -> Alike | None:
    """The steps that `step_time` uses, in order."""
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
    """Steps with nearly the wanted work, scaled to it.

    slope: ns per unit of work; no step is scaled by more than its own average ns per unit of work.
    """
    scaled = ns + np.minimum(slope, ns / work) * (target - work)
    return Alike(scaled, float(np.median(scaled)), equal_work=True)


def _slope(ns: F64, work: F64, others: tuple[F64, F64] | None) -> float:
    """How much longer steps take per unit of work; 0 if all do the same work, or if work explains too little of their
    variance."""
    start, slope = line(work, ns, _known_others(others))
    left, all_of_it = float(np.var(ns - start - slope * work)), float(np.var(ns))
    return slope if left <= (1 - calibrated.EXPLAINED.value) * all_of_it else 0.0


def _known_others(others: tuple[F64, F64] | None) -> tuple[F64, F64] | None:
    if others is None:
        return None
    known = _usable(*others)
    return others[0][known], others[1][known]


def _usable(ns: F64, work: F64 | None) -> Mask:
    """Steps with known time and work, without outliers."""
    known = np.isfinite(ns) if work is None else np.isfinite(ns) & np.isfinite(work)
    if known.any():
        known &= np.where(np.isfinite(ns), ns, np.inf) <= OUTLIER * np.median(ns[known])
    return known


@dataclass(frozen=True, slots=True)
class RareStep:
    """A step that recurs every N steps and takes longer than those between."""

    every: int
    ns: int
    """Its median time."""
    usual_ns: int
    """Median time of the steps between."""
    count: int
    """Number of such steps that were timed."""


def rare_step(number: I64, ns: F64, waited_ns: F64) -> RareStep | None:
    """The long step that recurs at a fixed distance among consecutive steps; None if there is none.

    number: of each step, ascending. ns: how long it took, NaN if unknown. waited_ns: how much of that it waited for
    its batch: loader workers cause waits at fixed distances, too.
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
    """(a, b) of the least-squares line ns = a + b · work with b ≥ 0: more work never takes less time.

    others: (ns, work) of further points, on another line with the same slope b.
    """
    product = square = 0.0
    for one_work, one_ns in ((work, ns), *(((others[1], others[0]),) if others and len(others[0]) else ())):
        from_mean = one_work - one_work.mean()
        product += float(from_mean @ (one_ns - one_ns.mean()))
        square += float(from_mean @ from_mean)
    slope = max(product / square, 0.0) if square > 0 else 0.0
    return float(ns.mean()) - slope * float(work.mean()), slope


def _at(ns: F64, work: F64, target: float, others: tuple[F64, F64] | None) -> Alike | None:
    """The step read off the line, if enough steps differ in work and the target is not far from them."""
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
