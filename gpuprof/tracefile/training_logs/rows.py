"""Iterations in rows of a tracker: JSON objects and lines of a table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from gpuprof.tracefile.training_logs.frameworks import plain_key
from gpuprof.tracefile.training_logs.record import LogEntry

STEPS = ("training/global_step", "trainer/global_step", "global_step", "_step", "step")
"""Keys of an entry's step number."""
_TIMES = ("_timestamp", "timestamp", "time")


def row_of(line: str) -> dict[str, Any] | None:
    """A line that is a JSON object; None for any other."""
    if not line.startswith("{") or not line.rstrip().endswith("}"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def rows(given: Iterable[Any]) -> Iterator[LogEntry]:
    """The iterations in the rows of a tracker; other rows are skipped."""
    for row in given:
        if not isinstance(row, dict):
            continue
        flat = _flat(row)
        values = known(flat)
        if values:
            step = next((int(flat[key]) for key in (*STEPS, "Step") if flat.get(key, -1) >= 0), None)
            yield LogEntry(step, values, next((flat[key] for key in _TIMES if key in flat), None))


def _flat(row: dict[Any, Any]) -> dict[str, float]:
    """Numbers by key. Those of a nested object appear under the keys joined by a slash, and also without the outer
    key."""
    found: dict[str, float] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            inner = _flat(value)
            found |= {f"{key}/{name}": number for name, number in inner.items()} | inner
        elif (number := _number(value)) is not None:
            found[str(key).rpartition(" - ")[2]] = number
    return found


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def known(values: dict[str, float]) -> dict[str, float]:
    """The finite values under names that a framework uses."""
    named = {plain_key(key): value for key, value in values.items()}
    return {key: value for key, value in named.items() if key is not None and abs(value) < 1e15}
