"""Values of a run's files, none of which can be trusted: what is not what it should be is as if it were not there."""

from __future__ import annotations

import math
from typing import Any

from gpuprof.tracefile.trace import LATEST_NS
from gpuprof.units import Assumed, Characters, Entries, Levels, Values

LARGEST_NUMBER: Assumed[Values] = 2**53
"""Numbers beyond this are damage: as nanoseconds 104 days, as bytes 9 PB."""
_DEEPEST: Assumed[Levels] = 6
_MOST_ITEMS: Assumed[Entries] = 1000
_LONGEST_TEXT: Assumed[Characters] = 2000
"""What is kept of the parts of a file that are passed on as they are."""


def whole(value: Any, least: int = 0, most: int = LARGEST_NUMBER) -> int | None:
    """A whole number between two limits."""
    if isinstance(value, float) and math.isfinite(value):
        value = round(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None


def number(value: Any, most: float) -> float:
    """A number from 0 to `most`, else NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        return math.nan
    return float(value)


def string(value: Any) -> str | None:
    """A text that is not empty, cut at the length that anybody reads."""
    return value[:_LONGEST_TEXT] if isinstance(value, str) and value else None


def items(value: Any) -> list[Any]:
    """What a list holds, where it is one."""
    return value[:_MOST_ITEMS] if isinstance(value, list) else []


def dicts(value: Any) -> list[dict[str, Any]]:
    """The objects in a list, where it is one."""
    return [item for item in items(value) if isinstance(item, dict)]


def of_counts(value: Any, depth: int = 0) -> Any:
    """What describes a model, an optimizer or a loader: its numbers count something, so a negative one is unknown."""
    if depth > _DEEPEST:
        return None
    if isinstance(value, dict):
        return {key: of_counts(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [of_counts(item, depth + 1) for item in value]
    return None if isinstance(value, (int, float)) and value < 0 else value


def mapping(value: Any) -> dict[str, Any] | None:
    """An object as it was recorded, but no larger than anybody would read."""
    return bounded(value) if isinstance(value, dict) else None


def bounded(value: Any, depth: int = 0) -> Any:
    """A value as it was recorded, but no larger than anybody would read."""
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return value if -LATEST_NS < value < LATEST_NS else None  # NaN is in no range
    if depth >= _DEEPEST:
        return None
    if isinstance(value, dict):
        first = list(value.items())[:_MOST_ITEMS]
        return {key[:_LONGEST_TEXT]: bounded(item, depth + 1) for key, item in first}
    return [bounded(item, depth + 1) for item in items(value)]
