"""What a number or a text in a document may be, said with its type: the published schemas are made from these.

A number is 0 or more unless its type says something else, a text may be empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of a number: no less than `low`, no more than `high`, or more than `above`; None: no such bound."""

    low: float | None = None
    high: float | None = None
    above: float | None = None


@dataclass(frozen=True, slots=True)
class Items:
    """The least and the greatest length of a list; None: no bound."""

    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """A text of one character or more."""


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
