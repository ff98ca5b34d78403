"""The budget of the mean step: its wall time, and where that goes.

    mean = usual + sum of the causes + residual        (exact, in whole nanoseconds)

The mean is the wall time of one stretch of free-running steps divided by their number; the usual step is the median at
equal work. The excess of a step is its time beyond what its work explains. It is attributed to the causes that were
measured in that step, but never more than the excess itself: a CPU event during which the GPU works off queued kernels
delays nothing. What remains, positive or negative, is the variation. One-off costs are taken out of the mean; events on
a known schedule enter with their schedule and measured cost, however many of them the stretch happened to contain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.diagnosis.mean_step.budget_model import NAMES, Budget, Excess, Once
from gpuprof.diagnosis.sentences import Sentences, capital, duration, listed
from gpuprof.record.base.quantiles import t80
from gpuprof.record.steps.free_run_length import block_of, half_width
from gpuprof.timeline.unit import STEP, Unit
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.tracefile.trace import F64, I64
from gpuprof.units import Assumed, Share, Steps

ONCE = ("new_shapes", "compile", "warm_up")
"""Causes that appear in the first steps of their kind and then stop, unless they are seen to recur."""
WARM_UP_STEPS: Assumed[Steps] = 3
"""First steps of a stretch, which may still be warming up: a step is warming up if its unexplained time (neither by its
work nor by a measured cause) exceeds a calibrated multiple of the usual step."""
LEAST_CAUSE_SHARE: Assumed[Share] = 0.05
"""A cause counts for a step if it took at least this share of the usual step."""
UNKNOWN_HALF_WIDTH: Assumed[Share] = 0.1
"""Half the interval of a mean whose steps say nothing about it, as a share of the usual step."""
FEWEST_OF_MEAN: Assumed[Steps] = 4
"""Fewest steps of a stretch that gets a budget."""


@dataclass(frozen=True, slots=True)
class FreeStretch:
    """Consecutive free-running steps between two device synchronisations; one row per step in every column."""

    wall_ns: int
    """Wall time of the whole stretch, by the CPU's clock."""
    step_ns: F64
    """Time per step, from CUDA events if there is a GPU."""
    expected_ns: F64
    """Usual step time for the work of each step."""
    usual_ns: int
    """Usual step time for the work that the budget is for."""
    measured_ns: Mapping[str, F64] = field(default_factory=dict)
    """Cause → CPU wall time that each step spent on it."""
    every: Mapping[str, int] = field(default_factory=dict)
    """Cause → steps from one such event to the next, from the program's settings, or as all unprofiled steps show."""
    events_ns: Mapping[str, F64] = field(default_factory=dict)
    """Cause → CPU wall time of each such event outside the stretch, for causes that the stretch did not contain."""
    recorded: Mapping[str, int] = field(default_factory=dict)
    """Cause → recorded steps that had it."""
    ahead_ns: Mapping[str, int] = field(default_factory=dict)
    """Cause → time that all later steps are expected to spend on it, where this differs from the stretch."""
    recurring: frozenset[str] = frozenset()
    """Causes of ONCE that still occur in later steps, and so are part of the mean step."""
    workers: int = 0
    """Processes that prepare batches."""
    total_steps: int | None = None
    """Steps that the training will take, for one-off costs."""
    source: str = "free"
    """Origin of the steps: `free` (timed without a profiler) or `recorded`."""
    number: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Number of each step in the run; empty if unknown."""


def budget(stretch: FreeStretch) -> Budget | None:
    """The budget of a stretch; None if it has too few steps."""
    n = len(stretch.step_ns)
    if n < FEWEST_OF_MEAN or stretch.wall_ns <= 0:
        return None
    share = attributed(stretch)
    once_ns = {cause: float(share[cause].sum()) for cause in ONCE if cause in share and cause not in stretch.recurring}
    scheduled = {cause: _events(share, stretch.measured_ns, cause) for cause in stretch.every}
    plain = [cause for cause in share if cause not in once_ns and cause not in scheduled]
    # Wall time without one-off costs and scheduled events, which another stretch may not contain.
    apart = sum(once_ns.values()) + sum(float(events.sum()) for events in scheduled.values())
    regular = max(stretch.wall_ns - apart, 0.0)
    excess = [_plain(cause, share[cause], stretch.usual_ns) for cause in plain]
    excess += [
        _scheduled(cause, events, stretch.events_ns.get(cause), stretch.every[cause])
        for cause, events in scheduled.items()
    ]
    planned = sum(one.mean_ns or 0 for one in excess if one.every is not None)
    mean = round(regular / n) + planned
    half = math.hypot(_half_width(stretch, share, scheduled, once_ns), _half_width_of_events(stretch, scheduled))
    excess = [replace(one, recorded=stretch.recorded.get(one.cause)) for one in excess if one.mean_ns != 0]
    excess.sort(key=lambda one: -(one.mean_ns or 0))
    residual = mean - stretch.usual_ns - sum(one.mean_ns or 0 for one in excess)
    pauses = _pauses(stretch, share)
    return Budget(
        mean_ns=mean,
        low=max(round(mean - half), 0),
        high=round(mean + half),
        usual_ns=stretch.usual_ns,
        excess=tuple(excess),
        once=tuple(
            _once(cause, share[cause], stretch) for cause in (*once_ns, *_healing(stretch)) if share[cause].any()
        ),
        residual_ns=residual,
        steps=n,
        source=stretch.source,
        paused_ns=max(min(round(float(pauses.sum()) / n), residual), 0),
        pauses=len(pauses) if residual > 0 else 0,
    )


def _pauses(stretch: FreeStretch, share: Mapping[str, F64]) -> F64:
    """Unexplained time of each step that paused: its time − its work − the measured causes, ns."""
    left = np.nan_to_num(stretch.step_ns - stretch.expected_ns) - sum(share.values())
    return left[left > calibrated.PAUSE.value * stretch.usual_ns]


def attributed(stretch: FreeStretch) -> dict[str, F64]:
    """Cause → ns of each step's excess that it caused; their sum is at most the excess.

    If the causes together took longer than the excess, all are scaled down to it: the rest overlapped with GPU work.
    """
    excess = np.nan_to_num(stretch.step_ns - stretch.expected_ns).clip(0)
    measured = {cause: np.nan_to_num(ns).clip(0) for cause, ns in stretch.measured_ns.items()}
    beyond = {cause: _beyond_usual(cause, ns) for cause, ns in measured.items()}
    total = np.sum(list(beyond.values()), axis=0) if beyond else np.zeros(len(excess))
    warm_up = np.where(np.arange(len(excess)) < WARM_UP_STEPS, excess - total, 0.0)
    warm_up[warm_up < calibrated.WARM_UP.value * stretch.usual_ns] = 0
    if warm_up.any():
        beyond["warm_up"], total = warm_up, total + warm_up
    part = np.divide(excess, total, out=np.zeros_like(excess), where=total > 0).clip(0, 1)
    return {cause: ns * part for cause, ns in beyond.items()}


def _beyond_usual(cause: str, ns: F64) -> F64:
    """Time of a cause beyond what it takes in most steps. What it takes in most steps (waiting for batches, generating
    samples) belongs to the usual step. A cause in half of the steps or fewer is not usual; waits occur in
    every step and are compared with their median. The usual step has no new shapes, however many steps have some."""
    if not len(ns) or cause == "new_shapes":
        return ns
    usual = np.median(ns) if cause == "input" else np.quantile(ns, 0.5, method="lower")
    return (ns - usual).clip(0)


def _events(share: Mapping[str, F64], measured: Mapping[str, F64], cause: str) -> F64:
    """How much longer each step with an event of this cause is because of it."""
    if cause not in share:
        return np.empty(0, np.float64)
    return share[cause][np.nan_to_num(measured[cause]) > 0]


def _healing(stretch: FreeStretch) -> list[str]:
    """One-off causes that still recur in the stretch and are known to become rarer later."""
    return [cause for cause in ONCE if cause in stretch.recurring and cause in stretch.ahead_ns]


def _plain(cause: str, ns: F64, usual_ns: int) -> Excess:
    return Excess(cause, round(float(ns.sum()) / len(ns)), int(np.count_nonzero(ns >= LEAST_CAUSE_SHARE * usual_ns)))


def _scheduled(cause: str, events: F64, others: F64 | None, every: int) -> Excess:
    """The excess of an event that comes every `every` steps; its mean is None if no event was measured.

    others: CPU wall time of such events outside the stretch, used if it contains none.
    """
    known = _known_events(events, others)
    mean = round(float(known.mean()) / every) if len(known) else None
    return Excess(cause, mean, len(events), every)


def _once(cause: str, ns: F64, stretch: FreeStretch) -> Once:
    total = round(float(ns.sum()))
    ahead = stretch.ahead_ns.get(cause)
    per_step = None if not stretch.total_steps else round((total + (ahead or 0)) / stretch.total_steps)
    return Once(cause, total, int(np.count_nonzero(ns >= LEAST_CAUSE_SHARE * stretch.usual_ns)), per_step, ahead)


def _half_width(
    stretch: FreeStretch, share: dict[str, F64], scheduled: Mapping[str, F64], once_ns: Mapping[str, float]
) -> float:
    """Half the 80 % interval of the mean, from the steps without one-off and scheduled events, ns."""
    steps = np.nan_to_num(stretch.step_ns, nan=float(stretch.wall_ns / len(stretch.step_ns)))
    for cause in (*once_ns, *scheduled):
        steps = steps - share.get(cause, np.zeros(len(steps)))
    width = half_width(steps.tolist(), block_of(stretch.workers))
    return width if np.isfinite(width) else float(np.ptp(steps)) or UNKNOWN_HALF_WIDTH * stretch.usual_ns


def _half_width_of_events(stretch: FreeStretch, scheduled: Mapping[str, F64]) -> float:
    """Half the 80 % interval of what scheduled events add to the mean step, from how much they differ, ns. A single
    event says nothing about that."""
    square = 0.0
    for cause, events in scheduled.items():
        known = _known_events(events, stretch.events_ns.get(cause))
        if len(known) > 1:
            error = float(known.std(ddof=1)) / len(known) ** 0.5 / stretch.every[cause]
            square += (t80(len(known) - 1) * error) ** 2
    return square**0.5


def _known_events(events: F64, others: F64 | None) -> F64:
    return events if len(events) or others is None else others


def mean_ahead(found: Budget, left: int) -> int:
    """Mean of the `left` remaining steps, ns: causes that become rarer enter with their expected cost."""
    rarer = {one.cause: one.ahead_ns for one in found.once if one.ahead_ns is not None}
    now = sum(one.mean_ns or 0 for one in found.excess if one.cause in rarer)
    return found.mean_ns - now + round(sum(rarer.values()) / max(left, 1))


def budget_of_recorded(step_ns: list[float]) -> Budget | None:
    """The budget of a recording without a run, from the recorded steps with the profiler's cost removed; nothing else
    is known about the training. None without steps."""
    if not step_ns:
        return None
    mean, usual = round(float(np.mean(step_ns))), round(float(np.median(step_ns)))
    half = half_width(step_ns, block_of(None))
    half = half if np.isfinite(half) else float(np.ptp(step_ns))
    return Budget(
        mean_ns=mean, low=max(round(mean - half), 0), high=round(mean + half), usual_ns=usual, excess=(), once=(),
        residual_ns=mean - usual, steps=len(step_ns), source="recorded",
    )  # fmt: skip


WORTH_SAYING: Assumed[Share] = 0.05
"""Smallest share of the mean step at which the verdict names a cause."""


def in_words(found: Budget, unit: Unit = STEP) -> Sentences:
    """`Waiting for batches adds 27.2 ms to the mean step (2 of 10 timed steps).`; none if the mean step is the usual
    one. The headline gives the step time."""
    large = [one for one in found.excess if (one.mean_ns or 0) >= WORTH_SAYING * found.mean_ns]
    pauses: Sentences = ()
    if found.paused_ns >= WORTH_SAYING * found.mean_ns:
        often = f"{found.pauses} of {found.steps} timed {unit}s"
        mean = "" if large else f" to the mean {unit}"
        pauses = (f"Pauses without a measured cause add {duration(found.paused_ns)}{mean} ({often}).",)
    if not large and not pauses:
        return _not_measured(found, unit)
    each = [
        f"{NAMES.get(one.cause, one.cause)} adds {duration(one.mean_ns or 0)}{'' if i else f' to the mean {unit}'}"
        f" ({_how_often(one, found.steps, unit)})"
        for i, one in enumerate(large)
    ]
    added = (f"{capital(listed(each))}.",) if each else ()
    return (*added, *pauses, *_not_measured(found, unit))


def _not_measured(found: Budget, unit: Unit) -> Sentences:
    """`Not measured, and not included: saving (every 500 steps).`; none if every scheduled event was measured."""
    unseen = [one for one in found.excess if one.mean_ns is None]
    if not unseen:
        return ()
    each = ", ".join(f"{NAMES.get(one.cause, one.cause)} (every {one.every} {unit}s)" for one in unseen)
    return (f"Not measured, and not included: {each}.",)


def _how_often(one: Excess, steps: int, unit: Unit) -> str:
    often = f"every {one.every} {unit}s" if one.every is not None else f"{one.steps} of {steps} timed {unit}s"
    return f"{often}; none fell into the recorded {unit}s" if one.recorded == 0 else often


def usual_wait(folder: RunFolder | None, found: Budget, unit: Unit) -> Sentences:
    """`Waiting for batches takes 33 ms of a usual step.`; none if it is less than 5 % of that, or unknown.

    For runs whose recording has no GPU work. This is the median over the free-running steps; waiting beyond it is a
    cause in the budget.
    """
    if folder is None:
        return ()
    waits = folder.steps.data_ns[folder.steps.rows("baseline_free", folder.rank)]
    waits = waits[waits >= 0]
    usual = float(np.median(waits)) if len(waits) else 0.0
    if usual < WORTH_SAYING * found.usual_ns:
        return ()
    return (f"Waiting for batches takes {duration(min(usual, found.usual_ns))} of a usual {unit}.",)
