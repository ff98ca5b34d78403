"""One iteration in a log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoggedIteration:
    """The values of one iteration, under the framework's names."""

    step: int
    values: dict[str, float]
    at_s: float | None
    """When it was logged, seconds from an arbitrary origin; None if not known."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a log, before entries of an iteration are joined."""

    step: int | None
    """None if the log does not number it."""
    values: dict[str, float]
    at_s: float | None = None


def by_iteration(found: Iterable[LogEntry]) -> tuple[LoggedIteration, ...]:
    """Entries of the same step joined, in order of step. A later entry wins: a resumed training repeats
    steps. Entries without a number are separate iterations."""
    joined: dict[int, LoggedIteration] = {}
    last = -1
    for one in found:
        step = last + 1 if one.step is None else one.step
        last = step
        before = joined.get(step)
        values = one.values if before is None else {**before.values, **one.values}
        joined[step] = LoggedIteration(
            step, values, one.at_s if one.at_s is not None or before is None else before.at_s
        )
    return tuple(joined[step] for step in sorted(joined))
