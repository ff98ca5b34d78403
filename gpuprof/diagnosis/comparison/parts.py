"""Whole nanoseconds handed out so that nothing is lost: the parts sum to the whole, always."""

from __future__ import annotations

import math
from collections.abc import Sequence


def allot(whole: int, weights: Sequence[float]) -> list[int]:
    """`whole`, of either sign, in parts proportional to the weights (none negative); what rounding leaves goes to those
    with the largest remainder, the first of equals.

    Without any weight the first part has it all; of no parts the result is empty.
    """
    if not weights:
        return []
    total = math.fsum(weights)
    if not total > 0:
        return [whole, *[0] * (len(weights) - 1)]
    sign, size = (-1, -whole) if whole < 0 else (1, whole)
    exact = [size * (weight / total) for weight in weights]
    given = [math.floor(value) for value in exact]
    left = size - sum(given)
    # A float may have rounded up to the next whole number: then there is one too many to hand out.
    order = sorted(range(len(given)), key=lambda i: (given[i] - exact[i], i))
    step = 1 if left >= 0 else -1
    at = 0
    while left:
        i = order[at % len(order)]
        if given[i] + step >= 0:
            given[i] += step
            left -= step
        at += 1
    return [sign * value for value in given]
