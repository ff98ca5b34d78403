"""Several ranks of one training: whom the others wait for, and what that rank does more than they do.

The recordings are read one after another, twice: first only their collectives are kept, which are matched to tell
waiting from transfer; then each rank is replayed with its peers never late. That is its own pace, and the step of all
is the slowest pace: the ranks run in lockstep, and who is faster waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpuprof.costs.roofline import roofline
from gpuprof.diagnosis.analyse import bound_parts
from gpuprof.diagnosis.verdict import bound_and_cause
from gpuprof.errors import GpuprofError, UnreadableTrace
from gpuprof.replay.build import build
from gpuprof.replay.carried import carried_over
from gpuprof.replay.collectives import estimate_transfers, model_collectives, without_waiting
from gpuprof.replay.graph import DEVICE, HOST, INPUT, RESOURCES, TRANSFER, Graph
from gpuprof.replay.host_pace import SPREAD, host_pace
from gpuprof.replay.profiler_cost import recorded_events, without
from gpuprof.replay.profiler_fit import remove_profiler
from gpuprof.replay.sensitivity import sensitivities
from gpuprof.replay.simulate import ROUNDS, simulate
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.collectives import Collectives, find_collectives
from gpuprof.timeline.frames import FrameIndex
from gpuprof.timeline.matching import Matched, match
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.model import ANNOTATION, F64, I64, Trace
from gpuprof.tracefile.ranks import rank_in_name

SLOWER = 1.05
"""A rank this much slower than the others, step by step, is a straggler: steps of one program differ by less (see
`predict.WORTH`). Of fewer than three steps it takes more, as the mean of fewer scatters more: √3 times as much of
one."""
MOSTLY_LAST, THROUGHOUT = 2 / 3, 3
"""A straggler comes last to so much of the collectives that somebody waited in, or is slower in each of so many steps
and more: of two ranks whose steps merely scatter each comes last to half, and is slower now and then."""
MOST_KEPT = 300
"""Kinds of work kept per rank: their time covers practically all of a step."""

Read = Callable[[Path], Trace]


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank's part in a step, without the profiler's cost."""

    rank: int
    path: str
    step_ns: int | None
    """The step of all ranks, estimated."""
    pace_ns: int | None
    """The step that this rank would take if no other were ever late."""
    waiting_ns: int | None
    """Of a step, for other ranks."""
    transfer_ns: int | None
    """Collectives of a step once all ranks have come, overlapped or not; None where ranks are missing."""
    late_share: float | None
    """Of the collectives that somebody waited in, those that this rank came last to."""
    bound: str | None
    cause: str | None
    clock_offset_ns: int | None
    """What its clock shows more than the first rank's, as the ends of collectives tell."""


@dataclass(frozen=True, slots=True)
class Doing:
    """One kind of work of a rank, per step, without the profiler's cost."""

    resource: str
    phase: str
    what: str
    """The op, or Python outside of ops; on the device the category of kernels."""
    ns: float
    frame: str | None
    """Of its longest stretch: the line of Python, and where it is in that rank's own window."""
    start_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True)
class Excess:
    """What a rank does more per step than the median of the others."""

    doing: Doing
    ns: float


@dataclass(frozen=True, slots=True)
class Gang:
    """All ranks together."""

    ranks: tuple[RankSummary, ...]
    shown: int
    """Index of the rank whose own diagnosis speaks for all: the one that the others wait for."""
    slow: int | None
    """The same where it is a straggler, slower by SLOWER than any other; None where there is none."""
    step_ns: float | None
    low_ns: float | None
    high_ns: float | None
    """Eight of ten steps lie between the two."""
    next_pace_ns: float | None
    """The second slowest pace."""
    excess: tuple[Excess, ...]
    """The straggler's, most first."""
    excess_bound: str | None
    """Of which resource most of that is."""
    missing: tuple[int, ...]
    """Ranks of the training that are not among these."""
    notes: tuple[tuple[str, str], ...]
    """(id, sentence) about recordings that could not be used, or not wholly."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the first reading keeps of a rank."""

    path: Path
    rank: int | None
    world_size: int | None
    clock_ns: int
    host_pace: float
    found: Collectives
    expected_ns: F64
    """What each collective takes once all ranks have arrived, as the message and the link suggest."""


@dataclass(frozen=True, slots=True)
class _Own:
    """What the second reading keeps of a rank."""

    step_ns: float
    pace_ns: float
    paces_ns: F64
    """The pace in each recorded step, whose median `pace_ns` is."""
    low: float
    high: float
    """The interval of a step as parts of it."""
    bound: str | None
    cause: str | None
    doings: tuple[Doing, ...]


def survey(paths: Sequence[Path], read: Read, step: str | None = None, skip: int = 0) -> Gang:
    """Reads the ranks' traces, one at a time, and says who waits for whom.

    `read`: what makes a Trace of a path; `step`, `skip`: as for `diagnose`. Raises GpuprofError, one line, for two
    recordings of one rank and where fewer than two can be read.
    """
    notes: list[tuple[str, str]] = []
    seen = [one for path in paths if (one := _see(path, read, step, skip, notes)) is not None]
    seen = _in_order(seen, notes, [path.name for path in paths])
    # Clocks are compared as Unix times where the recordings tell their beginning.
    known = all(one.clock_ns for one in seen)
    clocked = [_on_clock(one.found, one.clock_ns if known else 0) for one in seen]
    matched = match(clocked, [one.expected_ns for one in seen])
    if not matched.collectives:
        raise UnreadableTrace(
            f"{seen[0].path.name} and {seen[1].path.name} share no collective: they are not ranks of one training, or"
            " were recorded at different times; give one of them"
        )
    # A few short ops tell how slow a host records. Where that is far from what the other ranks' tell, it is told wrong
    # (times in whole µs, too few such ops), and would pass for a difference between the ranks.
    usual = float(np.median([one.host_pace for one in seen]))
    paces = [one.host_pace if usual / SPREAD <= one.host_pace <= usual * SPREAD else usual for one in seen]
    owns = [_own(one, matched.transfer_ns[i], paces[i], read, step, skip) for i, one in enumerate(seen)]
    world = max((one.world_size or 0 for one in seen), default=0)
    missing = tuple(sorted(set(range(world)) - {one.rank for one in seen if one.rank is not None}))
    return _together(seen, matched, owns, missing, notes)


def _see(path: Path, read: Read, step: str | None, skip: int, notes: list[tuple[str, str]]) -> _Seen | None:
    try:
        trace = read(path)
    except UnreadableTrace as error:
        notes.append(("rank_unreadable", str(error)))
        return None
    timeline = build_timeline(trace, step, skip)
    if timeline is None or not len(trace.gpu):
        notes.append(("rank_without_gpu", f"{path.name}: holds no GPU work and was left out"))
        return None
    found = find_collectives(timeline)
    if not len(found):
        notes.append(("rank_without_collectives", f"{path.name}: holds no collective and was left out"))
        return None
    if trace.reading.truncated:
        notes.append(("rank_truncated", f"{path.name} is cut off: what it lacks is not compared"))
    meta = trace.meta
    rank = meta.rank if meta.rank is not None else rank_in_name(path)
    pace = host_pace(timeline)
    expected = estimate_transfers(timeline)[found.columns.row]
    return _Seen(path, rank, meta.world_size, meta.base_time_ns or 0, pace, found, expected)


def _in_order(seen: list[_Seen], notes: list[tuple[str, str]], names: list[str]) -> list[_Seen]:
    """By rank; recordings that do not say theirs follow in the order given."""
    if len(seen) < 2:
        why = f": {notes[0][1]}" if notes else ""
        raise UnreadableTrace(
            f"of {len(names)} recordings ({names[0]}, …) fewer than two are ranks of one training{why}"
        )
    by_rank: dict[int, Path] = {}
    for one in seen:
        if one.rank is None:
            continue
        if one.rank in by_rank:
            raise GpuprofError(
                f"{by_rank[one.rank]} and {one.path} are both of rank {one.rank}: give one recording a rank of one run"
            )
        by_rank[one.rank] = one.path
    free = iter(sorted(set(range(len(seen) + len(by_rank))) - set(by_rank)))
    numbered = [one if one.rank is not None else replace(one, rank=next(free)) for one in seen]
    return sorted(numbered, key=lambda one: one.rank or 0)


def _on_clock(found: Collectives, base_ns: int) -> Collectives:
    """The same with times that count from another beginning."""
    c = found.columns
    return Collectives(replace(c, start_ns=c.start_ns + base_ns, end_ns=c.end_ns + base_ns), found.texts)


def _own(one: _Seen, transfer_ns: F64, pace: float, read: Read, step: str | None, skip: int) -> _Own | None:
    """Replays one rank without the profiler's cost on hosts of that pace; None where its window holds nothing to
    replay."""
    timeline = build_timeline(read(one.path), step, skip)
    if timeline is None:
        return None
    graph = build(timeline)
    if not len(graph) or not graph.on_gpu.any():
        return None
    per_event = np.full(len(timeline.trace.gpu), np.nan)
    rows = one.found.columns.row
    per_event[rows] = transfer_ns
    graph = model_collectives(carried_over(graph), per_event)
    removal = remove_profiler(graph)
    graph = without(graph, recorded_events(graph).cost_ns(pace))
    bound, cause = bound_and_cause(graph, sensitivities(graph, bound_parts(timeline, roofline(timeline))))
    alone = simulate(without_waiting(graph), ROUNDS)
    return _Own(
        step_ns=simulate(graph, ROUNDS).step_ns,
        pace_ns=alone.step_ns,
        paces_ns=alone.each_ns,
        low=removal.low_ns / removal.step_ns,
        high=removal.high_ns / removal.step_ns,
        bound=bound,
        cause=cause,
        doings=_doings(graph),
    )


# -- what a rank does


def _doings(graph: Graph) -> tuple[Doing, ...]:
    """The rank's own work by resource, phase and name, most first; waits are not work."""
    timeline = graph.timeline
    trace = timeline.trace
    nodes = np.flatnonzero(np.isin(graph.resource, (HOST, INPUT, TRANSFER, DEVICE)) & ~graph.waits)
    if not len(nodes):
        return ()
    name = _names(graph, nodes)
    key = (graph.resource[nodes].astype(np.int64) * len(PHASES) + graph.phase[nodes]) * (name.max() + 1) + name
    keys, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    total = np.bincount(inverse, weights=graph.duration_ns[nodes], minlength=len(keys)) / graph.steps
    order = np.lexsort((-graph.duration_ns[nodes], inverse))
    longest = nodes[order[np.searchsorted(inverse[order], np.arange(len(keys)))]]
    kept = np.argsort(-total, kind="stable")[:MOST_KEPT]
    frames = _frames(timeline, graph, longest[kept])
    result = []
    for k, frame in zip(kept.tolist(), frames, strict=True):
        node, at = int(nodes[first[k]]), int(longest[k])
        result.append(
            Doing(
                resource=RESOURCES[graph.resource[node]],
                phase=PHASES[graph.phase[node]],
                what=_what(trace, int(name[first[k]])),
                ns=float(total[k]),
                frame=frame,
                start_ns=round(graph.recorded_start_ns[at]),
                longest_ns=round(graph.recorded_end_ns[at] - graph.recorded_start_ns[at]),
            )
        )
    return tuple(result)


def _names(graph: Graph, nodes: I64) -> I64:
    """What each node does, as a number: 0 Python, then categories of kernels, then names of ops."""
    timeline = graph.timeline
    ops = timeline.trace.ops
    name = np.zeros(len(nodes), np.int64)
    scope = graph.scope[nodes]
    in_op = np.flatnonzero((scope >= 0) & (graph.gpu_row[nodes] < 0))
    in_op = in_op[ops.kind[scope[in_op]] != ANNOTATION]
    name[in_op] = 1 + len(CATEGORIES) + ops.name[scope[in_op]]
    gpu = np.flatnonzero(graph.gpu_row[nodes] >= 0)
    name[gpu] = 1 + timeline.category[graph.gpu_row[nodes[gpu]]]
    return name


def _what(trace: Trace, name: int) -> str:
    if name == 0:
        return "Python"
    if name <= len(CATEGORIES):
        return f"{CATEGORIES[name - 1]} kernels"
    return trace.strings[name - 1 - len(CATEGORIES)]


def _frames(timeline: Timeline, graph: Graph, nodes: I64) -> list[str | None]:
    """The frame of Python in the middle of each host node, where there are stacks."""
    trace = timeline.trace
    if not len(trace.frames):
        return [None] * len(nodes)
    middle = (graph.recorded_start_ns[nodes] + graph.recorded_end_ns[nodes]) / 2 + timeline.window[0]
    found = FrameIndex(trace, timeline.nesting).frame(graph.lane[nodes], middle.astype(np.int64), graph.scope[nodes])
    return [trace.text(int(i)) if graph.lane[n] >= 0 else None for i, n in zip(found, nodes, strict=True)]


# -- all together


def _together(
    seen: list[_Seen], matched: Matched, owns: list[_Own | None], missing: tuple[int, ...], notes: list[tuple[str, str]]
) -> Gang:
    paced = sorted((i for i, own in enumerate(owns) if own), key=lambda i: -_pace(owns[i]))
    late = [_late_share(matched, i) or 0.0 for i in range(len(seen))]
    slow = next_pace = None
    excess: tuple[Excess, ...] = ()
    if len(paced) > 1:
        next_pace = _pace(owns[paced[1]])
        # Slow on its own, and the one that is waited for: the two have to say the same.
        slower = _slower([own for i in paced if (own := owns[i])])
        steps = min(len(own.paces_ns) for own in owns if own)
        mostly = late[paced[0]] >= MOSTLY_LAST or (len(slower) >= THROUGHOUT and slower.min() >= SLOWER)
        if np.median(slower) >= _least_slower(steps) and 0 < late[paced[0]] == max(late) and mostly:
            slow = paced[0]
            others = [own.doings for i in paced[1:] if (own := owns[i]) is not None]
            excess = _excess(_doings_of(owns[slow]), others)
    shown = slow if slow is not None else max(paced, key=lambda i: late[i], default=0)
    step = low = high = None
    own = owns[shown]
    if own:
        # With the waits that this rank has itself: others are late now and then, too.
        step = max(own.step_ns, _pace(owns[paced[0]]))
        low, high = step * own.low, step * own.high
    straggles = _largest(excess)
    ranks = tuple(
        _summary(one, owns[i], matched, i, step, straggles if i == slow else None) for i, one in enumerate(seen)
    )
    return Gang(ranks, shown, slow, step, low, high, next_pace, excess, straggles, missing, tuple(notes))


def _least_slower(steps: int) -> float:
    """How many times as long as any other rank a straggler takes, told from so many steps."""
    return 1 + (SLOWER - 1) * math.sqrt(max(1.0, THROUGHOUT / steps))


def _slower(owns: list[_Own]) -> F64:
    """How many times as long the first rank takes as the slowest of the others, step by step: ranks go through a step
    together, and steps of one rank differ by more than ranks do. Where not all hold the same steps, of the usual one.
    """
    first, *others = owns
    if len({len(own.paces_ns) for own in owns}) > 1:
        return np.array([first.pace_ns / max(own.pace_ns for own in others)])
    return first.paces_ns / np.maximum(np.max([own.paces_ns for own in others], axis=0), 1.0)


def _late_share(matched: Matched, i: int) -> float | None:
    waited = int(matched.waited_for[i].sum())
    return int(matched.last[i].sum()) / waited if waited else None


def _pace(own: _Own | None) -> float:
    return own.pace_ns if own else 0.0


def _doings_of(own: _Own | None) -> tuple[Doing, ...]:
    return own.doings if own else ()


def _excess(doings: tuple[Doing, ...], others: list[tuple[Doing, ...]]) -> tuple[Excess, ...]:
    """What is more than the others' median, most first."""
    tables = [{(d.resource, d.phase, d.what): d.ns for d in table} for table in others]
    found = []
    for doing in doings:
        usual = float(np.median([table.get((doing.resource, doing.phase, doing.what), 0.0) for table in tables]))
        found.append(Excess(doing, doing.ns - usual))
    return tuple(sorted((e for e in found if e.ns > 0), key=lambda e: -e.ns))


def _largest(excess: tuple[Excess, ...]) -> str | None:
    """The resource with most of the excess."""
    totals: dict[str, float] = {}
    for one in excess:
        totals[one.doing.resource] = totals.get(one.doing.resource, 0.0) + one.ns
    return max(totals, key=lambda name: totals[name]) if totals else None


def _summary(
    one: _Seen, own: _Own | None, matched: Matched, i: int, step: float | None, straggles: str | None
) -> RankSummary:
    columns = one.found.columns
    inside = columns.step >= 0
    steps = len(np.unique(columns.step[inside]))
    transfer = matched.transfer_ns[i][inside]
    bound, cause = (own.bound, own.cause) if own else (None, None)
    if straggles is not None:
        bound, cause = straggles if straggles != "device" else bound, "straggler"
    return RankSummary(
        rank=one.rank or 0,
        path=str(one.path),
        step_ns=None if step is None else round(step),
        pace_ns=None if own is None else round(own.pace_ns),
        waiting_ns=None if own is None or step is None else max(round(step) - round(own.pace_ns), 0),
        transfer_ns=round(float(np.nansum(transfer)) / steps) if steps and not np.isnan(transfer).all() else None,
        late_share=_late_share(matched, i),
        bound=bound,
        cause=cause,
        clock_offset_ns=matched.offset_ns[i],
    )
