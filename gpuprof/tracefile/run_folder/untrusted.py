"""Validates values of a run's files, which cannot be trusted: an invalid value counts as missing.

One value at a time: msgspec converts a document into a struct as a whole or refuses it, so one damaged number, or a key
that a later version writes in another way, would cost the run all that the document says.
"""

from __future__ import annotations

import math
from typing import Any

from gpuprof.tracefile.trace import LATEST_NS
from gpuprof.units import Assumed, Characters, Entries, Levels, Values

LARGEST_NUMBER: Assumed[Values] = 2**53
"""Larger numbers are damage: as nanoseconds this is 104 days, as bytes 9 PB."""
_DEEPEST: Assumed[Levels] = 6
_MOST_ITEMS: Assumed[Entries] = 1000
_LONGEST_TEXT: Assumed[Characters] = 2000
"""Limits for parts of a file that are passed on unchanged."""


def whole(value: Any, least: int = 0, most: int = LARGEST_NUMBER) -> int | None:
    """An integer between two limits; else None."""
    if isinstance(value, float) and math.isfinite(value):
        value = round(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None


def number(value: Any, most: float) -> float:
    """A number from 0 to `most`, else NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        return math.nan
    return float(value)


def string(value: Any) -> str | None:
    """A non-empty text, cut at _LONGEST_TEXT; else None."""
    return value[:_LONGEST_TEXT] if isinstance(value, str) and value else None


def items(value: Any) -> list[Any]:
    """The items of a list; empty for anything else."""
    return value[:_MOST_ITEMS] if isinstance(value, list) else []


def dicts(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; empty for anything else."""
    return [item for item in items(value) if isinstance(item, dict)]


def of_counts(value: Any, depth: int = 0) -> Any:
    """A description of a model, an optimizer or a loader: its numbers are counts, so negative ones are unknown."""
    if depth > _DEEPEST:
        return None
    if isinstance(value, dict):
        return {key: of_counts(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [of_counts(item, depth + 1) for item in value]
    return None if isinstance(value, (int, float)) and value < 0 else value


def mapping(value: Any) -> dict[str, Any] | None:
    """An object as recorded, but bounded in size; else None."""
    return bounded(value) if isinstance(value, dict) else None


def bounded(value: Any, depth: int = 0) -> Any:
    """A value as recorded, but bounded in size."""
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return value if -LATEST_NS < value < LATEST_NS else None  # False for NaN
    if depth >= _DEEPEST:
        return None
    if isinstance(value, dict):
        first = list(value.items())[:_MOST_ITEMS]
        return {key[:_LONGEST_TEXT]: bounded(item, depth + 1) for key, item in first}
    return [bounded(item, depth + 1) for item in items(value)]
