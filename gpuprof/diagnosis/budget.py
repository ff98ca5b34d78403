"""The budget of the mean step: what a user pays for a step, and where it goes.

    mean = usual + sum of the causes + residual        (exact, in whole nanoseconds)

The mean is the wall time of one free-running stretch of steps over their number; the usual step is the median at equal
work. What a step takes beyond what its work explains is its excess, and goes to the causes that were measured in that
step, as far as the excess reaches: time that the GPU spent on work it had been given before delays nothing. What
remains, positive or negative, is the variation. One-off costs are taken out of the mean; events on a known schedule
enter by schedule and measured cost, however often the stretch happened to hold them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.diagnosis.budget_model import NAMES, Budget, Excess, Once
from gpuprof.diagnosis.sentences import Sentences, capital, duration, listed
from gpuprof.record.free_run_length import block_of, half_width
from gpuprof.timeline.unit import STEP, Unit
from gpuprof.tracefile.trace import F64, I64

ONCE = ("new_shapes", "compile", "warm_up")
"""Causes that come with the first steps of their kind and then stay away, unless they are seen to recur."""
WARM_UP_STEPS, WARM_UP = 3, calibrated.WARM_UP.value
"""A step among the first WARM_UP_STEPS of a stretch is still warming up if more than WARM_UP usual steps of its time
are explained neither by its work nor by a measured cause."""
SEEN = 0.05
"""A step had a cause if it took this share of the usual step at least."""
PAUSE = calibrated.PAUSE.value
"""A step paused if nothing explains more than this many usual steps of its time."""
FEWEST = 4
"""Steps of a stretch that has a mean worth speaking of."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive free-running steps between two device synchronisations; one row per step in every column."""

    wall_ns: int
    """Of the whole stretch, on the host's clock."""
    step_ns: F64
    """Per step, on the GPU's timeline where there is one."""
    expected_ns: F64
    """What a usual step takes for the work of each."""
    usual_ns: int
    """A usual step at the work that the budget is for."""
    measured_ns: Mapping[str, F64] = field(default_factory=dict)
    """Cause → host time that each step spent on it."""
    every: Mapping[str, int] = field(default_factory=dict)
    """Cause → steps from one such event to the next, as the program's settings say."""
    events_ns: Mapping[str, F64] = field(default_factory=dict)
    """Cause → host time of each such event outside the stretch, for those that the stretch did not hold."""
    recorded: Mapping[str, int] = field(default_factory=dict)
    """Cause → steps of the recording that had it, too."""
    ahead_ns: Mapping[str, int] = field(default_factory=dict)
    """Cause → what the steps still to come are expected to spend on it, where that is not what the stretch shows."""
    recurring: frozenset[str] = frozenset()
    """Causes of ONCE that still come in the later steps, and so are part of every mean step."""
    workers: int = 0
    """Processes that prepare batches."""
    total_steps: int | None = None
    """Steps that the training will take, for one-off costs."""
    source: str = "free"
    """Where the steps are from: `free` (timed without a profiler) or `recorded`."""
    number: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Of each step, as the run counts them; empty where that is not known."""


def budget(stretch: Stretch) -> Budget | None:
    """The budget of a stretch; None if it has too few steps to have one."""
    n = len(stretch.step_ns)
    if n < FEWEST or stretch.wall_ns <= 0:
        return None
    share = attributed(stretch)
    once_ns = {cause: float(share[cause].sum()) for cause in ONCE if cause in share and cause not in stretch.recurring}
    scheduled = {cause: _events(share, stretch.measured_ns, cause) for cause in stretch.every}
    plain = [cause for cause in share if cause not in once_ns and cause not in scheduled]
    # What is left of the wall time once all that does not come with every stretch is taken out.
    apart = sum(once_ns.values()) + sum(float(events.sum()) for events in scheduled.values())
    regular = max(stretch.wall_ns - apart, 0.0)
    excess = [_plain(cause, share[cause], stretch.usual_ns) for cause in plain]
    excess += [
        _scheduled(cause, events, stretch.events_ns.get(cause), stretch.every[cause])
        for cause, events in scheduled.items()
    ]
    planned = sum(one.mean_ns or 0 for one in excess if one.every is not None)
    mean = round(regular / n) + planned
    half = _half_width(stretch, share, scheduled, once_ns)
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


def _pauses(stretch: Stretch, share: Mapping[str, F64]) -> F64:
    """By what the steps that paused are longer than their work and the measured causes explain, ns."""
    left = np.nan_to_num(stretch.step_ns - stretch.expected_ns) - sum(share.values())
    return left[left > PAUSE * stretch.usual_ns]


def attributed(stretch: Stretch) -> dict[str, F64]:
    """Cause → ns of each step's excess that are due to it; their sum is at most the excess.

    Of causes that together took longer than the excess each keeps its share: the rest was hidden behind the GPU.
    """
    excess = np.nan_to_num(stretch.step_ns - stretch.expected_ns).clip(0)
    measured = {cause: np.nan_to_num(ns).clip(0) for cause, ns in stretch.measured_ns.items()}
    beyond = {cause: _beyond_usual(cause, ns) for cause, ns in measured.items()}
    total = np.sum(list(beyond.values()), axis=0) if beyond else np.zeros(len(excess))
    warm_up = np.where(np.arange(len(excess)) < WARM_UP_STEPS, excess - total, 0.0)
    warm_up[warm_up < WARM_UP * stretch.usual_ns] = 0
    if warm_up.any():
        beyond["warm_up"], total = warm_up, total + warm_up
    part = np.divide(excess, total, out=np.zeros_like(excess), where=total > 0).clip(0, 1)
    return {cause: ns * part for cause, ns in beyond.items()}


def _beyond_usual(cause: str, ns: F64) -> F64:
    """What a cause takes beyond what it takes in most steps: that much is in the usual step, as are waiting for each
    batch and generating the samples that each step then trains on. Something that comes in half of the steps, or in
    fewer, is not usual; waits, which no step is without, are compared with their median. The usual step has no new
    shapes, however many steps have some."""
    if not len(ns) or cause == "new_shapes":
        return ns
    usual = np.median(ns) if cause == "input" else np.quantile(ns, 0.5, method="lower")
    return (ns - usual).clip(0)


def _events(share: Mapping[str, F64], measured: Mapping[str, F64], cause: str) -> F64:
    """What each step that had an event of a cause is longer for it."""
    if cause not in share:
        return np.empty(0, np.float64)
    return share[cause][np.nan_to_num(measured[cause]) > 0]


def _healing(stretch: Stretch) -> list[str]:
    """One-off causes that still recur in the stretch and become rarer later, as far as that is known."""
    return [cause for cause in ONCE if cause in stretch.recurring and cause in stretch.ahead_ns]


def _plain(cause: str, ns: F64, usual_ns: int) -> Excess:
    return Excess(cause, round(float(ns.sum()) / len(ns)), int(np.count_nonzero(ns >= SEEN * usual_ns)))


def _scheduled(cause: str, events: F64, others: F64 | None, every: int) -> Excess:
    """An event that comes every `every` steps; its mean is unknown if none was seen.

    others: host time of such events outside the stretch, for want of any in it.
    """
    known = events if len(events) or others is None else others
    mean = round(float(known.mean()) / every) if len(known) else None
    return Excess(cause, mean, len(events), every)


def _once(cause: str, ns: F64, stretch: Stretch) -> Once:
    total = round(float(ns.sum()))
    ahead = stretch.ahead_ns.get(cause)
    per_step = None if not stretch.total_steps else round((total + (ahead or 0)) / stretch.total_steps)
    return Once(cause, total, int(np.count_nonzero(ns >= SEEN * stretch.usual_ns)), per_step, ahead)


def _half_width(
    stretch: Stretch, share: dict[str, F64], scheduled: Mapping[str, F64], once_ns: Mapping[str, float]
) -> float:
    """Half the 80 % interval of the mean: of what is left in every step without one-off and scheduled events."""
    steps = np.nan_to_num(stretch.step_ns, nan=float(stretch.wall_ns / len(stretch.step_ns)))
    for cause in (*once_ns, *scheduled):
        steps = steps - share.get(cause, np.zeros(len(steps)))
    width = half_width(steps.tolist(), block_of(stretch.workers))
    return width if np.isfinite(width) else float(np.ptp(steps)) or 0.1 * stretch.usual_ns


def mean_ahead(found: Budget, left: int) -> int:
    """The mean of the `left` steps still to come, ns: what becomes rarer enters with what is expected of it."""
    rarer = {one.cause: one.ahead_ns for one in found.once if one.ahead_ns is not None}
    now = sum(one.mean_ns or 0 for one in found.excess if one.cause in rarer)
    return found.mean_ns - now + round(sum(rarer.values()) / max(left, 1))


def budget_of_recorded(step_ns: list[float]) -> Budget | None:
    """The budget of a recording without a run: of the recorded steps, the profiler's cost removed; nothing else is
    known of the training. None without steps."""
    if not step_ns:
        return None
    mean, usual = round(float(np.mean(step_ns))), round(float(np.median(step_ns)))
    half = half_width(step_ns, block_of(None))
    half = half if np.isfinite(half) else float(np.ptp(step_ns))
    return Budget(
        mean_ns=mean, low=max(round(mean - half), 0), high=round(mean + half), usual_ns=usual, excess=(), once=(),
        residual_ns=mean - usual, steps=len(step_ns), source="recorded",
    )  # fmt: skip


WORTH_SAYING = 0.05
"""Share of the mean step from which on a cause is named in the verdict."""


def in_words(found: Budget, unit: Unit = STEP) -> Sentences:
    """`Waiting for batches adds 27.2 ms to the mean step (2 of 10 timed steps).`; none where the mean step is the
    usual one. How long they are is the headline's to say."""
    large = [one for one in found.excess if (one.mean_ns or 0) >= WORTH_SAYING * found.mean_ns]
    pauses: Sentences = ()
    if found.paused_ns >= WORTH_SAYING * found.mean_ns:
        often = f"{found.pauses} of {found.steps} timed {unit}s"
        mean = "" if large else f" to the mean {unit}"
        pauses = (f"Pauses of no measured cause add {duration(found.paused_ns)}{mean} ({often}).",)
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
    """`Not measured, and not included: saving (every 500 steps).`; none where all that is scheduled was seen."""
    unseen = [one for one in found.excess if one.mean_ns is None]
    if not unseen:
        return ()
    each = ", ".join(f"{NAMES.get(one.cause, one.cause)} (every {one.every} {unit}s)" for one in unseen)
    return (f"Not measured, and not included: {each}.",)


def _how_often(one: Excess, steps: int, unit: Unit) -> str:
    often = f"every {one.every} {unit}s" if one.every is not None else f"{one.steps} of {steps} timed {unit}s"
    return f"{often}; none of them was recorded" if one.recorded == 0 else often
