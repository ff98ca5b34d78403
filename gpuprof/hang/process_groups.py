"""Process groups of a job, combined from the dumps of all ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuprof.hang.dump import Call, GroupState
from gpuprof.hang.rank_state import RankState

_ENDS = re.compile(r"(?P<kind>send|recv) (?P<one>\d+)(?:->|<-)(?P<other>\d+)")
"""`send 0->1`, `recv 1<-0`: ranks within the group."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group, and its state on each rank."""

    name: str
    description: str
    members: tuple[int, ...]
    """Global ranks, in order: those named by a dump; else all ranks for the default group, and for another group the
    ranks that have used it."""
    named: bool
    """Whether a dump names the members."""
    states: Mapping[int, GroupState]
    """State by the rank that dumped it."""

    def ends(self, call: Call) -> tuple[int, int] | None:
        """Global (source, destination) of a send or a receive; None if they are not members."""
        found = _ENDS.match(call.op)
        if found is None:
            return None
        one, other = int(found["one"]), int(found["other"])
        if max(one, other) >= len(self.members):
            return None
        at, of = self.members[one], self.members[other]
        return (at, of) if found["kind"] == "send" else (of, at)


def groups_of(states: Sequence[RankState]) -> list[Group]:
    """All groups in any dump, by name, backend and members.
    A state without calls takes its group's backend. Several groups may have the same name: `split_group` and device
    meshes create one for each row. A dump without members belongs to the only group of that name, or to the one that
    contains its rank.
    """
    known: dict[tuple[str, str], dict[int, GroupState]] = {}
    silent: list[tuple[int, GroupState]] = []
    for state in states:
        for group in state.dump.groups if state.dump is not None else ():
            if group.backend:
                known.setdefault((group.name, group.backend), {})[state.rank] = group
            else:
                silent.append((state.rank, group))
    for rank, group in silent:
        backends = [key for key in known if key[0] == group.name] or [(group.name, "")]
        for key in backends:
            known.setdefault(key, {}).setdefault(rank, group)
    named = {rank for by_rank in known.values() for one in by_rank.values() for rank in one.ranks or ()}
    world = tuple(sorted({*(state.rank for state in states), *named}))
    return [group for (name, _), by_rank in sorted(known.items()) for group in _of_name(name, by_rank, world)]


def _of_name(name: str, by_rank: Mapping[int, GroupState], world: tuple[int, ...]) -> list[Group]:
    rows = sorted({one.ranks for one in by_rank.values() if one.ranks})
    named = bool(rows)
    if not named:
        is_default = name in ("0", "") or any(one.description == "default_pg" for one in by_rank.values())
        rows = [world if is_default else tuple(sorted(by_rank))]
    found = []
    for members in rows:
        states = {
            rank: one
            for rank, one in by_rank.items()
            if one.ranks == members or (not one.ranks and (len(rows) == 1 or rank in members))
        }
        description = next((one.description for one in states.values() if one.description), "")
        found.append(Group(name, description, members, named, states))
    return found
