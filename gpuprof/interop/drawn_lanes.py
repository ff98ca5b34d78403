"""Lanes, on which spans are drawn: threads or streams. Lanes belong to a group, which viewers call a process."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of a viewer. Lanes are shown in the order of their group, then of `order`, then as they came."""

    group: str
    """Key of the group."""
    name: str
    order: int = 0


@dataclass(slots=True)
class Lanes:
    """The lanes of one file. The number of a lane is its index in `lanes`."""

    lanes: list[Lane] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    """Key → name, from top to bottom."""

    def add(self, lane: Lane) -> int:
        """Number of the new lane."""
        self.lanes.append(lane)
        return len(self.lanes) - 1
