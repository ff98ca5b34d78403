"""Decides whether a fix makes the training faster, from the mean steps of processes with it and of unchanged ones.

The rule, for *faster*; *slower* is its mirror image:

1. Clear: with at least two processes with the fix and three without, each of the former is faster than each of the
latter, and the gap between the two groups is larger than both the scatter of the unchanged processes (max − min of
   their logarithms) and `noise.PROCESS` of the calibration, each divided by m − 1, m being the number of processes
   with the fix.
2. Or by rank: with at least four processes with the fix, the exact one-sided Wilcoxon rank-sum test of the two groups
has p ≤ RANK_SUM_P / m². It is repeated after every round, so the level falls with m, which bounds the probability that
any round confirms by chance. 3. And the gain agrees: its 80 % interval lies above 1. Neither 1 nor 2 assumes a
distribution of the noise: if a fix does nothing, its processes and the unchanged ones are exchangeable. Unchanged
processes run before, between and after those with the fix, so that a machine that only gets slower, or faster, does not
separate the groups. Without any effect a fix is confirmed by chance in at most 5 of 100 trials
(`tests/property/test_decision.py` draws normal, heavy-tailed, skewed, two-valued and drifting noise), in 2 of 100 where
noise is normal. That holds for each fix, not for all fixes of a trial together.

*No difference*: after three rounds the 80 % interval of the gain ends below SURE_GAIN, the smallest gain that is
advised.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal

from gpuprof.calibration import noise as noise_calibrated
from gpuprof.diagnosis.detect.declared.proposal import SURE_GAIN
from gpuprof.trial.trial import MeasuredGain
from gpuprof.units import Assumed, Measured, Processes, Share

RANK_SUM_P: Measured[Share] = 0.2
"""The rank-sum test decides at p ≤ RANK_SUM_P / m². Chosen by simulation so that all rounds together stay below 5 %
(see above)."""
FEWEST_CLEAR_PROCESSES: Assumed[Processes] = 2
FEWEST_BY_RANK: Assumed[Processes] = 4
FEWEST_OF_NONE: Assumed[Processes] = 3
"""Fewest processes with the fix for each part of the rule, and for *no difference*."""

Decision = Literal["confirmed", "slower", "no_difference"]


def decide(plain: Sequence[float], fixed: Sequence[float], gain: MeasuredGain) -> Decision | None:
    """The decision from the mean steps of processes without (`plain`) and with a fix (`fixed`), in any unit; None:
    undecided. gain: the speedup relative to neighbouring processes, with its 80 % interval."""
    if (
        gain.low is None
        or gain.high is None
        or len(fixed) < FEWEST_CLEAR_PROCESSES
        or len(plain) <= FEWEST_CLEAR_PROCESSES
    ):
        return None
    without, with_it = [math.log(step) for step in plain], [math.log(step) for step in fixed]
    if gain.low > 1 and _faster(without, with_it):
        return "confirmed"
    if gain.high < 1 and _faster([-log for log in without], [-log for log in with_it]):
        return "slower"
    return "no_difference" if len(fixed) >= FEWEST_OF_NONE and gain.high < SURE_GAIN else None


def _faster(plain: Sequence[float], fixed: Sequence[float]) -> bool:
    """Whether logarithms of steps with a fix are below those without by more than chance."""
    gap, scatter = min(plain) - max(fixed), max(plain) - min(plain)
    if gap * (len(fixed) - 1) > max(scatter, noise_calibrated.PROCESS.value):
        return True
    return len(fixed) >= FEWEST_BY_RANK and rank_sum_probability(plain, fixed) <= RANK_SUM_P / len(fixed) ** 2


def rank_sum_probability(plain: Sequence[float], fixed: Sequence[float]) -> float:
    """Exact one-sided p of Wilcoxon's rank-sum test (Mann and Whitney's U): the probability that values of one
    distribution are ordered at least as much in favour of `fixed`. Ties count against it."""
    above = sum(one >= other for one in fixed for other in plain)
    few, many = len(fixed), len(plain)
    return sum(_orders(u, few, many) for u in range(above + 1)) / math.comb(few + many, few)


@functools.lru_cache(100_000)
def _orders(u: int, few: int, many: int) -> int:
    """Number of orders of two groups in which exactly u pairs are against the first (recursion of Mann and Whitney,
    1947)."""
    if u < 0:
        return 0
    if few == 0 or many == 0:
        return int(u == 0)
    return _orders(u - many, few - 1, many) + _orders(u, few, many - 1)
