"""Probability and expected value of a fix's predicted gain.

A gain is given by its expected value and its 80 % interval. Its logarithm is assumed to be normal on either side of the
expected value, with the standard deviation of that side: 10 % of draws lie below the interval and 10 % above.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from gpuprof.calibration import doubts as calibrated
from gpuprof.units import Convention, Share
from gpuprof.value_range import Range

_NORMAL = NormalDist()
_LEVELS_OF_RANGE: Convention[tuple[Share, Share, Share]] = (0.1, 0.5, 0.9)
"""Share of the draws below the ends of an 80 % interval and the expected value."""
_Z90 = _NORMAL.inv_cdf(_LEVELS_OF_RANGE[2])
_LEVELS = tuple((2 * i + 1) / 40 for i in range(20))
"""Levels whose quantiles represent the distribution: the midpoints of twenty equal parts."""
_SCORES = tuple(_NORMAL.inv_cdf(level) for level in _LEVELS)


def probability(gain: Range, least: float) -> float:
    """Probability that the gain is `least` or more, 0 to 1."""
    away = math.log(gain.expected / least)
    side = math.log(gain.expected / gain.low) if away >= 0 else math.log(gain.high / gain.expected)
    if side <= 0:
        return float(away >= 0)
    return _NORMAL.cdf(away * _Z90 / side)


def measured_odds(assumed: float) -> float:
    """Probability that a fix works which needs something that the recording does not show, from the assumed one: such
    fixes worked more often than was assumed of them."""
    return 1 - calibrated.DOUBT_LEFT.value * (1 - assumed)


def time_left(gain: Range) -> float:
    """Time with the fix / time without, averaged over the distribution of the gain: the risk that a fix makes the
    training slower counts, too."""
    return sum(1 / _quantile(gain, score) for score in _SCORES) / len(_SCORES)


def with_odds(gain: Range, odds: float) -> Range:
    """The gain of a fix that works with a probability of `odds` and otherwise changes nothing: median and 80 % interval
    of the mixture. Gains below 1 stay below 1."""
    if odds >= 1:
        return gain
    return Range(*(_of_mixture(gain, odds, level) for level in _LEVELS_OF_RANGE))


def _of_mixture(gain: Range, odds: float, level: float) -> float:
    below = odds * (1 - probability(gain, 1.0))
    if level < below:
        return _quantile(gain, _NORMAL.inv_cdf(level / odds))
    if level <= below + 1 - odds:
        return 1.0
    return _quantile(gain, _NORMAL.inv_cdf((level - (1 - odds)) / odds))


def _quantile(gain: Range, score: float) -> float:
    end = gain.high if score > 0 else 1 / gain.low
    middle = gain.expected if score > 0 else 1 / gain.expected
    factor = math.exp(abs(score) / _Z90 * math.log(end / middle))
    return gain.expected * factor if score > 0 else gain.expected / factor
