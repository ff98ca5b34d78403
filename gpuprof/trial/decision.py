"""Whether a fix makes the training faster: one rule, on the mean steps of processes with it and of unchanged ones.

The rule, for *faster*; *slower* is its mirror image:

1. Clear: from two processes with the fix and three without, each of the former is faster than each of the latter, and
   the gap between the two groups is larger than the scatter of the unchanged processes (their largest logarithm less
   their smallest) divided by one less than the processes with the fix, and than PROCESS_NOISE divided likewise.
2. Or by rank: from four processes with the fix, the exact one-sided Wilcoxon rank-sum test of the two groups has a
   probability of at most LEVEL / m², m being the processes with the fix. It is asked again after every round, so its
   level falls: what all rounds can confirm by chance stays bounded.
3. And what is shown agrees: the 80 % interval of the gain lies above 1.

Neither step needs noise of a known shape: where a fix does nothing, its processes and the unchanged ones may change
places, whatever scatters them. Unchanged processes run before, between and after those with the fix, so that a machine
that only gets slower, or faster, separates no groups. Without any effect a fix is confirmed by chance in at most 5 of
100 trials (`tests/property/test_decision.py` draws normal, heavy-tailed, skewed, two-valued and drifting noise), in 2
of 100 where noise is normal. That holds for each fix, not for all fixes of a trial together.

*No difference*: after three rounds the 80 % interval of the gain ends below SURE, which is all that could be advised.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal

from gpuprof.diagnosis.detect.proposal import SURE_GAIN
from gpuprof.replay.noise import PROCESS_NOISE
from gpuprof.trial.trial import Interval
from gpuprof.units import Assumed, Measured, Processes, Share

RANK_SUM_P: Measured[Share] = 0.2
"""Over the square of the processes with a fix: the probability at which the rank-sum test decides. Chosen by simulation
so that all rounds together stay below 5 % (see above)."""
FEWEST_CLEAR: Assumed[Processes] = 2
FEWEST_BY_RANK: Assumed[Processes] = 4
FEWEST_OF_NONE: Assumed[Processes] = 3
"""Processes with the fix from which each part of the rule, and *no difference*, may decide."""

Decision = Literal["confirmed", "slower", "no_difference"]


def decide(plain: Sequence[float], fixed: Sequence[float], gain: Interval) -> Decision | None:
    """What the mean steps of processes without (`plain`) and with a fix (`fixed`), in any unit, decide; None: nothing
    yet. gain: the speedup, paired with neighbours, and its 80 % interval."""
    if gain.low is None or gain.high is None or len(fixed) < FEWEST_CLEAR or len(plain) <= FEWEST_CLEAR:
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
    if gap * (len(fixed) - 1) > max(scatter, PROCESS_NOISE):
        return True
    return len(fixed) >= FEWEST_BY_RANK and rank_sum_probability(plain, fixed) <= RANK_SUM_P / len(fixed) ** 2


def rank_sum_probability(plain: Sequence[float], fixed: Sequence[float]) -> float:
    """Exact one-sided p of Wilcoxon's rank-sum test (Mann and Whitney's U): that values of one distribution are ordered
    as much in favour of `fixed`, or more. Equal values count as ordered against it."""
    above = sum(one >= other for one in fixed for other in plain)
    few, many = len(fixed), len(plain)
    return sum(_orders(u, few, many) for u in range(above + 1)) / math.comb(few + many, few)


@functools.lru_cache(100_000)
def _orders(u: int, few: int, many: int) -> int:
    """Orders of two groups in which exactly u pairs are against the first (the recursion of Mann and Whitney, 1947)."""
    if u < 0:
        return 0
    if few == 0 or many == 0:
        return int(u == 0)
    return _orders(u - many, few - 1, many) + _orders(u, few, many - 1)
