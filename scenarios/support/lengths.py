"""Numbers of tokens of samples: drawn from log-normal distributions with the mean of the data set that they imitate."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

LONGEST = 2048
"""Tokens at which samples are cut."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """`mean`: mean length of the cut samples; `scatter`: standard deviation of the logarithm of the length."""

    mean: float
    scatter: float
    fewest: int = 16


DATA = {"alpaca": Lengths(117.0, 0.6), "long": Lengths(861.0, 0.8)}
"""Instructions like Alpaca's: short, a few several times the mean. Long texts, a tenth of which is cut."""


def draw(data: str, count: int, seed: int = 0, longest: int = LONGEST) -> list[int]:
    """Token counts of `count` samples, in the order of the data set."""
    return spread(DATA[data], count, seed, longest)


def spread(lengths: Lengths, count: int, seed: int = 0, longest: int = LONGEST) -> list[int]:
    """Token counts that follow `lengths`."""
    rng = random.Random(seed)
    middle = _middle(lengths, longest)
    drawn = (math.exp(rng.gauss(middle, lengths.scatter)) for _ in range(count))
    return [round(min(max(length, lengths.fewest), longest)) for length in drawn]


def _middle(lengths: Lengths, longest: int) -> float:
    """The mean of the logarithm for which cut samples have the given mean. By bisection."""
    low, high = math.log(lengths.fewest), math.log(longest) + 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _cut_mean(middle, lengths.scatter, longest) < lengths.mean else (low, middle)
    return (low + high) / 2


def _cut_mean(middle: float, scatter: float, longest: int) -> float:
    """Mean of min(X, longest), X log-normal."""

    def below(z: float) -> float:
        return 0.5 * math.erfc(-z / math.sqrt(2))

    z = (math.log(longest) - middle) / scatter
    return math.exp(middle + scatter**2 / 2) * below(z - scatter) + longest * (1 - below(z))
