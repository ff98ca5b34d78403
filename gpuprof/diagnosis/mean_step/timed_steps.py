"""The free-running steps that a run timed, one by one: the time of each, and what it waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpuprof.calibration import thresholds as thresholds_calibrated
from gpuprof.diagnosis.mean_step.budget import FreeStretch, attributed
from gpuprof.replay.mean_step import PAUSES, VARIATION
from gpuprof.tracefile.trace import I64

USUAL = "usual"
"""Part of a step: the time that its work explains. PAUSES and VARIATION are unexplained time in steps that paused and
in the others."""


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """Timed steps in order, without those of unknown duration; one row per step in every column."""

    number: I64
    """Step numbers as the run counts them."""
    ns: I64
    parts: Mapping[str, I64]
    """`usual`, then each cause that occurred, most time first, then `pauses` and `variation`: ns ≥ 0, which sum to
    `ns`."""


def timed_steps(stretch: FreeStretch) -> TimedSteps:
    """The steps of a stretch, each split into whole nanoseconds that sum to it.

    A step shorter than usual for its work is entirely `usual`.
    """
    known = np.isfinite(stretch.step_ns)
    ns = _whole(stretch.step_ns[known])
    usual = np.minimum(ns, _whole(stretch.expected_ns[known]))
    causes = {cause: column[known] for cause, column in attributed(stretch).items()}
    causes = dict(sorted(causes.items(), key=lambda item: -float(item[1].sum())))
    # Rounding the running sums instead of the parts keeps the sum exact.
    filled, parts = np.zeros(len(ns)), {USUAL: usual}
    below = np.zeros(len(ns), np.int64)
    for cause, column in causes.items():
        filled = filled + column
        above = np.minimum(_whole(filled), ns - usual)
        if (above > below).any():
            parts[cause] = above - below
        below = above
    rest = ns - usual - below
    paused = rest > thresholds_calibrated.PAUSE.value * stretch.usual_ns
    parts[PAUSES], parts[VARIATION] = np.where(paused, rest, 0), np.where(paused, 0, rest)
    number = stretch.number if len(stretch.number) == len(known) else np.arange(1, len(known) + 1)
    return TimedSteps(number[known], ns, parts)


def _whole(ns: np.ndarray) -> I64:
    return np.rint(np.nan_to_num(ns)).clip(0).astype(np.int64)
