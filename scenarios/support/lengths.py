"""How many tokens samples have: drawn from log-normal distributions with the mean of the data set they stand for."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

LONGEST = 2048
"""Samples are cut at this many tokens."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """`mean`: of the samples after they were cut; `scatter`: of the logarithm of the length."""

    mean: float
    scatter: float
    fewest: int = 16


DATA = {"alpaca": Lengths(117.0, 0.6), "long": Lengths(861.0, 0.8)}
"""Instructions as in Alpaca: short, a few several times the mean. Long texts: a tenth is cut."""


def draw(data: str, count: int, seed: int = 0, longest: int = LONGEST) -> list[int]:
    """Token counts of this many samples, in the order of the data set."""
    return spread(DATA[data], count, seed, longest)


def spread(lengths: Lengths, count: int, seed: int = 0, longest: int = LONGEST) -> list[int]:
    """Token counts that follow `lengths`."""
    rng = random.Random(seed)
    middle = _middle(lengths, longest)
    drawn = (math.exp(rng.gauss(middle, lengths.scatter)) for _ in range(count))
    return [round(min(max(length, lengths.fewest), longest)) for length in drawn]


def _middle(lengths: Lengths, longest: int) -> float:
    """The mean of the logarithm with which samples that were cut have the mean that is given. By bisection."""
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
