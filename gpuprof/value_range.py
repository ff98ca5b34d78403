"""A value that is known within an interval."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """An expected value and its 80 % interval; the unit is in the name of the field that holds it."""

    low: float
    expected: float
    high: float
