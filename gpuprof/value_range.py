"""A value that is known within an interval."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """An expected value and the interval around it, for predicted times and gains that of 80 %; the unit is in the name
    of the field that holds it."""

    low: float
    expected: float
    high: float
