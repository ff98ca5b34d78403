"""Decides which rank a job waits for, at which collective, and why, from the states of all ranks.

Pure: states in, a `Hang` out. A collective hangs if some member of its group has called it and it is not done. Then
other members called something else at the same number (a mismatch), or have not arrived. A missing member may itself
wait in another group: the chain is followed to ranks that wait for no other, or back to its start (a deadlock between
groups).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from gpuprof.hang.dump import Call, DumpFrame, GroupState
from gpuprof.hang.process_groups import Group, groups_of
from gpuprof.hang.rank_state import RankState
from gpuprof.hang.stacks import own_frame
from gpuprof.units import Assumed, WholeNs

Kind = Literal[
    "mismatch",
    "deadlock",
    "dead",
    "stopped",
    "no_dump",
    "save",
    "loader",
    "compile",
    "missing",
    "stuck",
    "late",
    "none",
]
LATE_NS: Assumed[WholeNs] = 10_000_000_000
"""A rank that others have waited for less than this is late, not yet missing."""
_PEER_GONE = re.compile(
    r"closed by peer|reset by peer|broken pipe|remote (?:worker|process)|peer (?:is )?gone|communicator was aborted"
    r"|timed out waiting|watchdog",
    re.IGNORECASE,
)
"""Matches errors of gloo and NCCL on a rank whose partner had ended."""
_SAME_SIZES = {
    "all_reduce", "broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "all_gather", "all_gather_single",
    "_all_gather_base", "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base",
}  # fmt: skip
"""Collectives whose inputs have the same number of elements on every rank, and all coalesced ones."""
_STREAMED = {"nccl", "ncclx", "rccl", "rcclx", "xccl", "hccl"}
"""Backends whose collectives run on a GPU stream: the program continues, and blocks where it needs a result."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An unfinished collective that some members of its group have called."""

    group: str
    description: str
    seq: int
    op: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    members: tuple[int, ...]
    members_named: bool
    """Whether a dump names the members; else they are the ranks that left a dump."""
    came: tuple[int, ...]
    missing: tuple[int, ...]
    """Members that have not called it, including those without a dump."""
    since_ns: int
    """When the first member called it, ns since 1970; 0: unknown."""
    at: DumpFrame | None
    """Where the ranks that called it did so."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Ranks of a group that called different things at the same number."""

    what: Literal["collective", "sizes", "dtypes"]
    group: str
    seq: int
    usual: str
    """What most ranks called; in a tie, what the group called before; empty if that is undecided, too."""
    others: Mapping[int, str]
    """Rank → what it called instead; all ranks if there is no usual call."""
    at: Mapping[int, DumpFrame | None]


@dataclass(frozen=True, slots=True)
class Hang:
    """Why a job hangs."""

    kind: Kind
    ranks: tuple[int, ...]
    """The ranks that cause the hang."""
    at: DumpFrame | None
    """Where the first of them is, or its last call."""
    waiting: Waiting | None
    mismatch: Mismatch | None
    waited_ns: int | None
    """How long the first rank has waited; None: unknown."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """When the ranks' states were taken, ns since 1970."""

    at_ns: int | None
    """None: unknown."""
    latest_ns: int
    """Upper bound; 0: unknown."""

    def waited(self, since_ns: int) -> int | None:
        """How long something had lasted by then, ns; None: unknown."""
        return max(self.at_ns - since_ns, 0) if since_ns and self.at_ns else None

    def is_early(self, since_ns: int) -> bool:
        """Whether it had certainly lasted for less than LATE_NS."""
        latest_ns = self.at_ns or self.latest_ns
        return bool(since_ns) and 0 <= latest_ns - since_ns < LATE_NS


def judge(states: Sequence[RankState], now_ns: int | None = None) -> Hang:
    """Why these ranks do not continue; `kind` is "none" if nothing waits.
    now_ns: when their states were taken, ns since 1970. None: unknown; then the modification time of the dumps, which
    copying may change, is an upper bound.
    """
    groups = groups_of(states)
    by_rank = {state.rank: state for state in states}
    by_rank |= {rank: RankState(rank) for one in groups for rank in one.members if rank not in by_rank}
    now = Taken(now_ns, max((one.dump.written_ns for one in states if one.dump), default=0))
    notes = tuple(_notes(by_rank))
    collectives = [_waiting(group) for group in groups]
    for group, one in zip(groups, collectives, strict=True):
        found = _mismatch(group, one)
        if found is not None:
            usual = _waiting(group, unlike=found.others) if one is not None and one.seq == found.seq else one
            return _of_mismatch(found, usual, now, notes)
    waiting = [one for one in collectives if one is not None]
    waiting += [one for group in groups for one in _waiting_transfers(group)]
    waiting.sort(key=lambda one: one.since_ns)
    if not waiting:
        return _without_collectives(by_rank, notes)
    return _of_missing(waiting, by_rank, now, notes)


# -- what waits


def _waiting(group: Group, unlike: Collection[int] = ()) -> Waiting | None:
    """The first unfinished collective of a group."""
    pending = [call.seq for state in group.states.values() for call in state.calls if not call.done]
    if not pending:
        return None
    seq = min(pending)
    came = {rank: call for rank, state in group.states.items() if (call := _called(state, seq)) is not None}
    missing = [rank for rank in group.members if rank not in came and not _is_past(group, rank, seq)]
    return _waits(group, seq, came, group.members, missing, unlike)


def _waiting_transfers(group: Group) -> Iterator[Waiting]:
    """The sends and receives in which ranks wait: for each rank the first unfinished one, or its whole batch."""
    seen = set[tuple[int, int]]()
    for rank, state in sorted(group.states.items()):
        pending = [call for call in state.transfers if not call.done]
        for call in (one for one in pending if one.seq == pending[0].seq):
            ends = group.ends(call)
            if ends is None or ends in seen:
                continue
            seen.add(ends)
            other = ends[0] if rank == ends[1] else ends[1]
            theirs = group.states.get(other)
            met = next((c for c in theirs.transfers if not c.done and group.ends(c) == ends), None) if theirs else None
            came = {rank: call} | ({other: met} if met is not None else {})
            yield _waits(group, call.seq, came, tuple(sorted(ends)), [] if met is not None else [other])


def _waits(
    group: Group,
    seq: int,
    came: Mapping[int, Call],
    members: tuple[int, ...],
    missing: Sequence[int],
    unlike: Collection[int] = (),
) -> Waiting:
    like = [rank for rank in came if rank not in unlike] or [*came]
    call = came[min(like, key=lambda rank: came[rank].created_ns or rank)]
    return Waiting(
        group=group.name,
        description=group.description,
        seq=seq,
        op=call.op,
        sizes=call.sizes,
        dtypes=call.dtypes,
        members=members,
        members_named=group.named,
        came=tuple(sorted(came)),
        missing=tuple(missing),
        since_ns=min((one.created_ns for one in came.values() if one.created_ns), default=0),
        at=own_frame(call.frames),
    )


def _called(state: GroupState, seq: int) -> Call | None:
    return next((call for call in state.calls if call.seq == seq), None)


def _is_past(group: Group, rank: int, seq: int) -> bool:
    """Whether the rank has called this number, though its recorder no longer has it."""
    state = group.states.get(rank)
    return state is not None and state.enqueued >= seq


# -- calls that do not match


def _mismatch(group: Group, waiting: Waiting | None) -> Mismatch | None:
    """The first number at which ranks called different things, up to the one that hangs."""
    calls = {rank: {call.seq: call for call in state.calls} for rank, state in group.states.items()}
    numbers = sorted({seq for found in calls.values() for seq in found})
    for seq in numbers:
        if waiting is not None and seq > waiting.seq:
            break
        at = {rank: found[seq] for rank, found in calls.items() if seq in found}
        for what, said in (("collective", _operation), ("dtypes", _types), ("sizes", _elements)):
            known = {rank: (text, call) for rank, call in at.items() if (text := said(call)) is not None}
            if len({text for text, _ in known.values()}) > 1:
                before = [said(found[n]) for found in calls.values() for n in found if n < seq]
                return _differing(what, group.name, seq, known, before)
    return None


def _differing(what, name: str, seq: int, at: Mapping[int, tuple[str, Call]], before: Sequence[str | None]) -> Mismatch:
    """before: what the group's ranks called earlier, to decide ties."""
    called = Counter(said for said, _ in at.values())
    first, second = sorted(((count, before.count(said), said) for said, count in called.items()), reverse=True)[:2]
    usual = first[2] if first[:2] > second[:2] else ""
    others = {rank: said for rank, (said, _) in sorted(at.items()) if said != usual}
    return Mismatch(what, name, seq, usual, others, {rank: own_frame(at[rank][1].frames) for rank in others})


def _operation(call: Call) -> str:
    return call.op


def _types(call: Call) -> str | None:
    """Types of its inputs; None if it has none, as on the receiving ranks of a scatter."""
    return ", ".join(sorted(set(call.dtypes))) or None


def _elements(call: Call) -> str | None:
    """Its number of elements if this must be equal on all ranks, else None."""
    if not call.sizes or (call.op not in _SAME_SIZES and "coalesced" not in call.op):
        return None
    return f"{sum(prod(size) for size in call.sizes):,} elements"


def _of_mismatch(found: Mismatch, waiting: Waiting | None, now: Taken, notes: tuple[str, ...]) -> Hang:
    ranks = tuple(found.others)
    since = waiting.since_ns if waiting is not None else 0
    return Hang("mismatch", ranks, found.at.get(ranks[0]), waiting, found, now.waited(since), notes)


# -- which ranks are missing


def _of_missing(
    waiting: Sequence[Waiting], by_rank: Mapping[int, RankState], now: Taken, notes: tuple[str, ...]
) -> Hang:
    """Follows the missing ranks, starting at the collective that has waited longest."""
    blocked_in = {rank: one for one in reversed(waiting) for rank in one.came if _waits_in(by_rank[rank], one)}
    first = next((one for one in waiting if one.missing), None)
    if first is None:  # all ranks have called it, and it is not done
        one = waiting[0]
        gone = [rank for rank in one.came if by_rank[rank].life in ("dead", "stopped")]
        slow = _first_dead(by_rank, gone) if gone else one.came
        kind: Kind = _by_life(by_rank[slow[0]]) or "stuck"
        return Hang(kind, tuple(slow) if kind != "stuck" else (), one.at, one, None, now.waited(one.since_ns), notes)
    seen, roots, level = set[int](), list[int](), list(first.missing)
    shown = first
    while level:
        further = list[int]()
        for rank in level:
            if rank in seen:
                continue
            seen.add(rank)
            other = blocked_in.get(rank)
            gone = by_rank[rank].life in ("dead", "stopped")
            if other is None or gone or not other.missing:
                roots.append(rank)
            else:
                shown = other
                further += other.missing
        level = further
    if not roots:
        at = shown.at
        return Hang("deadlock", tuple(sorted(seen)), at, first, None, now.waited(first.since_ns), notes)
    roots.sort(key=lambda rank: _SEVERITY.index(_kind_of(by_rank[rank])))
    kind = _kind_of(by_rank[roots[0]])
    same = _first_dead(by_rank, sorted(rank for rank in roots if _kind_of(by_rank[rank]) == kind))
    shown = next((one for one in waiting if same[0] in one.missing), first)
    waited = now.waited(first.since_ns)
    if kind in ("missing", "loader", "save", "compile") and now.is_early(first.since_ns):
        notes = (*notes, f"rank {same[0]} is in {kind}" if kind != "missing" else f"rank {same[0]} computes")
        kind = "late"
    return Hang(kind, same, by_rank[same[0]].at, shown, None, waited, notes)


_SEVERITY: tuple[Kind, ...] = ("dead", "stopped", "no_dump", "save", "loader", "compile", "missing")


def _kind_of(state: RankState) -> Kind:
    """Why a rank that waits for no other is missing."""
    found = _by_life(state)
    if found is not None:
        return found
    if state.dump is None and state.stack is None:
        return "no_dump"
    doing = state.doing
    return doing if doing in ("save", "loader", "compile") else "missing"


def _by_life(state: RankState) -> Kind | None:
    return {"dead": "dead", "stopped": "stopped"}.get(state.life)  # pyright: ignore[reportReturnType]


def _first_dead(by_rank: Mapping[int, RankState], ranks: Sequence[int]) -> tuple[int, ...]:
    """The ranks, except those whose error says that another rank had ended before them."""
    first = [rank for rank in ranks if not _PEER_GONE.search(by_rank[rank].error or "")]
    return tuple(first or ranks)


def _waits_in(state: RankState, one: Waiting) -> bool:
    """Whether the rank blocks in a collective that it has called: false if its stack shows it elsewhere. With GPU
    streams it may block in any line that needs the GPU, so in any except those that wait for the CPU."""
    if state.stack is None or state.doing == "collective":
        return True
    return _is_streamed(state, one.group) and state.doing not in ("loader", "compile")


def _is_streamed(state: RankState, name: str) -> bool:
    groups = state.dump.groups if state.dump is not None else ()
    return any(group.name == name and group.backend in _STREAMED for group in groups)


def _without_collectives(by_rank: Mapping[int, RankState], notes: tuple[str, ...]) -> Hang:
    """The answer if no collective hangs: what each rank is doing."""
    for kind in ("dead", "stopped"):
        ranks = _first_dead(by_rank, [rank for rank, state in sorted(by_rank.items()) if state.life == kind])
        if ranks:
            return Hang(kind, ranks, by_rank[ranks[0]].at, None, None, None, notes)
    doing: dict[str, list[int]] = {}
    for rank, state in sorted(by_rank.items()):
        if state.stack is not None:
            doing.setdefault(state.doing, []).append(rank)
    for what in ("save", "loader", "compile", "python", "collective"):
        if what in doing:
            kind: Kind = "stuck" if what in ("python", "collective") else what  # pyright: ignore[reportAssignmentType]
            ranks = tuple(doing[what])
            return Hang(kind, ranks, by_rank[ranks[0]].at, None, None, None, notes)
    return Hang("none", (), None, None, None, None, notes)


def _notes(by_rank: Mapping[int, RankState]) -> Iterable[str]:
    for rank, state in sorted(by_rank.items()):
        if state.error:
            yield f"rank {rank}: {state.error}"
    versions = sorted({state.dump.version for state in by_rank.values() if state.dump and state.dump.version})
    if len(versions) > 1:
        yield f"the dumps are of several versions of the flight recorder ({', '.join(versions)})"
