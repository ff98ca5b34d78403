"""Which rank a job waits for, at which collective, and why: from what is known of all ranks.

Pure: states in, a `Hang` out. A collective hangs in a group where some member has called it and it is not done. Then
its members called something else at the same number (a mismatch), or did not come. A member that did not come may
itself wait in another group: that is followed to ranks which wait for no other, or round to where it began (a deadlock
of two groups).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuprof.bounds import Words
from gpuprof.hang.dump import Call, Frame, GroupState
from gpuprof.hang.rank_state import RankState
from gpuprof.hang.stacks import own_frame

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
LATE_NS = 10_000_000_000
"""A rank that others have waited for less long is late, and not yet missing."""
_PEER_GONE = re.compile(
    r"closed by peer|reset by peer|broken pipe|remote (?:worker|process)|peer (?:is )?gone|communicator was aborted"
    r"|timed out waiting|watchdog",
    re.IGNORECASE,
)
"""In the errors of gloo and NCCL on a rank whose partner had ended."""
_SAME_SIZES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "_all_gather_base",
    "_reduce_scatter_base",
)
"""Collectives whose inputs have the same number of elements on every rank."""
_ANY_SIZES = ("alltoall", "all_to_all", "gather", "scatter", "barrier", "coalesced", "uneven")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A collective of a group that some members have called and that is not done."""

    group: str
    description: str
    seq: int
    """Number of the collective within its group."""
    op: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    members: tuple[int, ...]
    came: tuple[int, ...]
    """Members that called it."""
    missing: tuple[int, ...]
    """Members that have not called it; those without a dump too."""
    since_ns: int
    """When the first called it, ns since 1970; 0: unknown."""
    at: Frame | None
    """Where those that came called it."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Ranks of a group that called different things at the same number."""

    what: Literal["collective", "sizes", "dtypes"]
    group: str
    seq: int
    usual: str
    """What most ranks called."""
    others: Mapping[int, Words]
    """Rank → what it called instead."""
    at: Mapping[int, Frame | None]


@dataclass(frozen=True, slots=True)
class Hang:
    """Why a job hangs."""

    kind: Kind
    """mismatch: ranks call different collectives, sizes or types; deadlock: two groups in opposite order; dead,
    stopped: a process; no_dump: a rank left nothing; save, loader, compile, missing: what a rank does that does not
    come (missing: anything else); stuck: all came; late: waited for less than 10 s; none: nothing waits."""
    ranks: tuple[int, ...]
    """Those that are the reason."""
    at: Frame | None
    """Where the first of them is, or what it called."""
    waiting: Waiting | None
    """The collective that others wait in."""
    mismatch: Mismatch | None
    waited_ns: int | None
    """How long the first rank has waited; None: unknown."""
    notes: tuple[str, ...] = ()


def judge(states: Sequence[RankState], now_ns: int | None = None) -> Hang:
    """The reason why these ranks do not go on; `kind` "none" where nothing waits.

    now_ns: when their states were taken, ns since 1970; None: when the last of all calls was made.
    """
    by_rank = {state.rank: state for state in states}
    world = _world(by_rank)
    by_rank |= {rank: RankState(rank) for rank in world if rank not in by_rank}
    waiting = [found for name in _groups(by_rank) if (found := _waiting(name, by_rank, world)) is not None]
    waiting.sort(key=lambda one: one.since_ns)
    now = now_ns or max((one.dump.last_ns for one in states if one.dump), default=0)
    notes = tuple(_notes(by_rank))
    for name in _groups(by_rank):
        found = _mismatch(name, by_rank, next((one for one in waiting if one.group == name), None))
        if found is not None:
            return _of_mismatch(found, next((one for one in waiting if one.group == name), None), now, notes)
    if not waiting:
        return _without_collectives(by_rank, notes)
    return _of_missing(waiting, by_rank, now, notes)


# -- what waits


def _world(by_rank: Mapping[int, RankState]) -> tuple[int, ...]:
    """Ranks that are known of: those with a state and those that a group names."""
    named = (rank for state in by_rank.values() for group in _of(state).values() for rank in group.ranks or ())
    return tuple(sorted({*by_rank, *named}))


def _of(state: RankState) -> Mapping[str, GroupState]:
    return state.dump.groups if state.dump is not None else {}


def _groups(by_rank: Mapping[int, RankState]) -> list[str]:
    return sorted({name for state in by_rank.values() for name in _of(state)})


def _members(name: str, by_rank: Mapping[int, RankState], world: tuple[int, ...]) -> tuple[int, ...]:
    """As a dump says; else of the default group all ranks, of another those that know of it."""
    states = [_of(state)[name] for state in by_rank.values() if name in _of(state)]
    said = next((state.ranks for state in states if state.ranks), None)
    if said:
        return said
    if name in ("0", "") or any(state.description == "default_pg" for state in states):
        return world
    return tuple(sorted(rank for rank, state in by_rank.items() if name in _of(state)))


def _waiting(name: str, by_rank: Mapping[int, RankState], world: tuple[int, ...]) -> Waiting | None:
    pending = {
        rank: call
        for rank, state in by_rank.items()
        if name in _of(state) and (call := next((c for c in _of(state)[name].calls if not c.done), None)) is not None
    }
    if not pending:
        return None
    seq = min(call.seq for call in pending.values())
    came = {rank: call for rank, state in by_rank.items() if (call := _called(state, name, seq)) is not None}
    first = min(came, key=lambda rank: came[rank].created_ns or rank)
    call, members = came[first], _members(name, by_rank, world)
    return Waiting(
        group=name,
        description=_of(by_rank[first])[name].description,
        seq=seq,
        op=call.op,
        sizes=call.sizes,
        dtypes=call.dtypes,
        members=members,
        came=tuple(sorted(came)),
        missing=tuple(rank for rank in members if rank not in came and not _is_past(by_rank[rank], name, seq)),
        since_ns=call.created_ns,
        at=own_frame(call.frames),
    )


def _called(state: RankState, name: str, seq: int) -> Call | None:
    group = _of(state).get(name)
    return next((call for call in group.calls if call.seq == seq), None) if group is not None else None


def _is_past(state: RankState, name: str, seq: int) -> bool:
    """Whether the rank has called this number, though its recorder has forgotten it."""
    group = _of(state).get(name)
    return group is not None and group.enqueued >= seq


# -- what does not fit together


def _mismatch(name: str, by_rank: Mapping[int, RankState], waiting: Waiting | None) -> Mismatch | None:
    """The first number at which ranks called different things, up to the one that hangs."""
    calls = {rank: {c.seq: c for c in _of(state)[name].calls} for rank, state in by_rank.items() if name in _of(state)}
    numbers = sorted({seq for found in calls.values() for seq in found})
    for seq in numbers:
        if waiting is not None and seq > waiting.seq:
            break
        at = {rank: found[seq] for rank, found in calls.items() if seq in found}
        for what, said in (("collective", _operation), ("dtypes", _types), ("sizes", _elements)):
            if len({said(call) for call in at.values()}) > 1:
                return _differing(what, name, seq, {rank: (said(call), call) for rank, call in at.items()})
    return None


def _differing(what, name: str, seq: int, at: Mapping[int, tuple[str, Call]]) -> Mismatch:
    usual = Counter(said for said, _ in at.values()).most_common(1)[0][0]
    others = {rank: said for rank, (said, _) in sorted(at.items()) if said != usual}
    return Mismatch(what, name, seq, usual, others, {rank: own_frame(at[rank][1].frames) for rank in others})


def _operation(call: Call) -> str:
    return call.op


def _types(call: Call) -> str:
    return ", ".join(dict.fromkeys(call.dtypes))


def _elements(call: Call) -> str:
    """Its elements where all ranks must have the same number of them."""
    if any(part in call.op for part in _ANY_SIZES) or not call.op.startswith(_SAME_SIZES):
        return ""
    total = 0
    for size in call.sizes:
        count = 1
        for n in size:
            count *= n
        total += count
    return f"{total:,} elements"


def _of_mismatch(found: Mismatch, waiting: Waiting | None, now: int, notes: tuple[str, ...]) -> Hang:
    ranks = tuple(found.others)
    since = waiting.since_ns if waiting is not None else 0
    return Hang("mismatch", ranks, found.at.get(ranks[0]), waiting, found, _waited(since, now), notes)


# -- who does not come


def _of_missing(waiting: Sequence[Waiting], by_rank: Mapping[int, RankState], now: int, notes: tuple[str, ...]) -> Hang:
    """From the collective that has waited longest along those that did not come."""
    blocked_in = {rank: one for one in reversed(waiting) for rank in one.came if _waits_in(by_rank[rank], one)}
    first = next((one for one in waiting if one.missing), None)
    if first is None:  # all came, and none is done
        one = waiting[0]
        gone = [rank for rank in one.came if by_rank[rank].life in ("dead", "stopped")]
        slow = _first_dead(by_rank, gone) if gone else one.came
        kind: Kind = _by_life(by_rank[slow[0]]) or "stuck"
        return Hang(kind, tuple(slow) if kind != "stuck" else (), one.at, one, None, _waited(one.since_ns, now), notes)
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
        return Hang("deadlock", tuple(sorted(seen)), at, first, None, _waited(first.since_ns, now), notes)
    roots.sort(key=lambda rank: _SEVERITY.index(_kind_of(by_rank[rank])))
    kind = _kind_of(by_rank[roots[0]])
    same = _first_dead(by_rank, sorted(rank for rank in roots if _kind_of(by_rank[rank]) == kind))
    shown = next((one for one in waiting if same[0] in one.missing), first)
    waited = _waited(first.since_ns, now)
    if kind in ("missing", "loader", "save", "compile") and waited is not None and 0 <= waited < LATE_NS:
        notes = (*notes, f"rank {same[0]} is in {kind}" if kind != "missing" else f"rank {same[0]} computes")
        kind = "late"
    return Hang(kind, same, by_rank[same[0]].at, shown, None, waited, notes)


_SEVERITY: tuple[Kind, ...] = ("dead", "stopped", "no_dump", "save", "loader", "compile", "missing")


def _kind_of(state: RankState) -> Kind:
    """Why a rank does not come that waits for no other."""
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
    """Without those whose error says that another rank had gone before."""
    first = [rank for rank in ranks if not _PEER_GONE.search(by_rank[rank].error or "")]
    return tuple(first or ranks)


def _waits_in(state: RankState, one: Waiting) -> bool:
    """Whether the rank is held up in a collective that it has called: not where its stack shows it elsewhere."""
    return state.stack is None or state.doing == "collective"


def _without_collectives(by_rank: Mapping[int, RankState], notes: tuple[str, ...]) -> Hang:
    """No collective hangs: what single ranks do."""
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


def _waited(since_ns: int, now_ns: int) -> int | None:
    return max(now_ns - since_ns, 0) if since_ns and now_ns else None


def _notes(by_rank: Mapping[int, RankState]) -> Iterable[str]:
    for rank, state in sorted(by_rank.items()):
        if state.error:
            yield f"rank {rank}: {state.error}"
    versions = sorted({state.dump.version for state in by_rank.values() if state.dump and state.dump.version})
    if len(versions) > 1:
        yield f"the dumps are of several versions of the flight recorder ({', '.join(versions)})"
