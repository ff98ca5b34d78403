"""A value that is known within an interval."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """An expected value and its 80 % interval."""

    low: float
    expected: float
    high: float
