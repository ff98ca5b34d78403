"""Bounds of numbers and texts in documents, annotated on their types; the published schemas are made from them.
By default a number is 0 or more, and a text may be empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of a number: at least `low`, at most `high`, greater than `above`; None: no such bound."""

    low: float | None = None
    high: float | None = None
    above: float | None = None


@dataclass(frozen=True, slots=True)
class Items:
    """Shortest and longest length of a list; None: no bound."""

    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """Numbers without a fraction, in a type that allows one."""


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """A non-empty text."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these texts, or of those in `of`, `module:NAME`, which is read only where a schema is written."""

    values: tuple[str, ...] = ()
    of: str = ""


Signed = Annotated[Number, Within()]
Positive = Annotated[Number, Within(low=1)]
"""One or more."""
Above0 = Annotated[float, Within(above=0)]
Share = Annotated[float, Within(low=0, high=1)]
Percent = Annotated[float, Within(low=0, high=100)]
Words = Annotated[str, NotEmpty()]
