"""What spans are drawn on: a lane is a thread or a stream, and belongs to a group, which viewers call a process."""

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
    """The lanes of one file. The number of a lane is its place in `lanes`."""

    lanes: list[Lane] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    """Key → name, from the top down."""

    def add(self, lane: Lane) -> int:
        """Number of the new lane."""
        self.lanes.append(lane)
        return len(self.lanes) - 1
