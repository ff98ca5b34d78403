"""Fixes that take off the same time, so that the first few entries of a list name different causes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_Entry = TypeVar("_Entry")


def leaders_first(
    ordered: Sequence[_Entry], overlaps: Callable[[_Entry, _Entry], bool], before: Sequence[_Entry] = ()
) -> list[tuple[_Entry, _Entry | None]]:
    """Entries, each with the earlier one to which it is an alternative, or None: those without come first, then their
    alternatives, both in the given order. `overlaps(first, later)`: whether `later` takes off mostly what `first` does;
    `before`: entries of a list that is shown before this one.
    """
    leaders: list[_Entry] = []
    others: list[tuple[_Entry, _Entry | None]] = []
    for one in ordered:
        first = next((leader for leader in (*before, *leaders) if overlaps(leader, one)), None)
        if first is None:
            leaders.append(one)
        else:
            others.append((one, first))
    return [*((one, None) for one in leaders), *others]
