"""Host threads as lanes of pieces: cut wherever an op, a call or a step begins or ends, and where a thread hands over.

A piece lies in one innermost op and at most one call, so whatever changes about an op or a call changes whole pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpuprof.timeline.nesting import Nesting, nest
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.distinct import distinct
from gpuprof.tracefile.trace import I32, I64


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of all lanes, lane after lane, in order of time."""

    lane: I32
    start_ns: I64
    end_ns: I64
    scope: I64
    call: I64
    waits: np.ndarray
    """The lane stalls: it has handed over to another one."""
    first: np.ndarray
    """First piece of a lane."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def before(self, lane: I32, t: I64) -> I64:
        """Index of the last piece of each lane that starts before t; -1 where there is none."""
        return self._last(lane, t, "left")

    def at(self, lane: I32, t: I64) -> I64:
        """Index of the last piece of each lane that starts at or before t; -1 where there is none."""
        return self._last(lane, t, "right")

    def active(self, lane: int, t: I64) -> I64:
        """Index of the last piece of one lane that starts at or before each t and does not stall; or -1."""
        rows = np.flatnonzero((self.lane == lane) & ~self.waits)
        k = np.searchsorted(self.start_ns[rows], t, side="right") - 1
        found = np.full(len(t), -1, np.int64)
        found[k >= 0] = rows[k[k >= 0]]
        return found

    def _last(self, lane: I32, t: I64, side: Literal["left", "right"]) -> I64:
        found = np.full(len(t), -1, np.int64)
        for thread in np.unique(lane).tolist():
            rows = np.flatnonzero(self.lane == thread)
            wanted = np.flatnonzero(lane == thread)
            k = np.searchsorted(self.start_ns[rows], t[wanted], side=side) - 1
            found[wanted[k >= 0]] = rows[k[k >= 0]]
        return found


@dataclass(frozen=True, slots=True)
class Pass:
    """A span in which the main thread stalls while others (autograd's, one per device) run."""

    start_ns: int
    end_ns: int
    lanes: tuple[tuple[int, int, int], ...]
    """(thread, first moment, last moment), in the order in which they begin."""


def driving_threads(timeline: Timeline) -> list[int]:
    """Threads that the step depends on: the main one first, then those that launch work or run the backward pass."""
    low, high = timeline.window
    calls, links = timeline.trace.calls, timeline.links
    rows = timeline.members[links.call[timeline.members] >= 0]
    launching = np.unique(calls.thread[links.call[rows]]).tolist()
    ops = timeline.trace.ops
    inside = (ops.end_ns > low) & (ops.start_ns < high)
    engine = [t for t in sorted(timeline.host.autograd) if np.any(ops.thread[inside] == t)]
    threads = [timeline.main_thread, *engine, *launching] if timeline.main_thread >= 0 else [*engine, *launching]
    return list(dict.fromkeys(int(t) for t in threads))


def cut_lanes(timeline: Timeline) -> tuple[Pieces, list[tuple[int, int, int]]]:
    """All driving threads of the window as pieces, and the handovers between them: (piece, piece that
    follows it, ns from the end of the one to the start of the other)."""
    trace, (low, high) = timeline.trace, timeline.window
    calls = nest(trace.calls.thread, trace.calls.start_ns, trace.calls.end_ns)
    threads = driving_threads(timeline)
    main = timeline.main_thread
    passes = _passes(timeline, calls, threads) if main >= 0 else []
    parts = []
    for thread in threads:
        if thread == main:
            marks = [np.array([(p.start_ns, p.end_ns) for p in passes], np.int64).reshape(-1)]
            cuts = _cuts(timeline, thread, np.concatenate([timeline.steps.start_ns, timeline.steps.end_ns, *marks]))
            cuts = distinct(np.concatenate([[low], cuts, [high]]))
            start, end = cuts[:-1], cuts[1:]
            k = np.searchsorted([p.start_ns for p in passes], start, side="right") - 1
            ends = np.array([p.end_ns for p in passes], np.int64)
            waits = (k >= 0) & (end <= ends[k]) if len(ends) else np.zeros(len(start), bool)
        else:
            start, end = _active(timeline, thread, [(s, e) for p in passes for t, s, e in p.lanes if t == thread])
            waits = np.zeros(len(start), bool)
        lane = np.full(len(start), thread, np.int32)
        parts.append((lane, start, end, timeline.nesting.innermost(lane, start), calls.innermost(lane, start), waits))
    if not parts:
        empty, none = np.empty(0, np.int64), np.empty(0, bool)
        return Pieces(empty.astype(np.int32), empty, empty, empty, empty, none, none), []
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    first = np.ones(len(columns[0]), bool)
    first[1:] = columns[0][1:] != columns[0][:-1]
    pieces = Pieces(*columns, first=first)
    return pieces, [pair for p in passes for pair in _handovers(pieces, main, p)]


def _cuts(timeline: Timeline, thread: int, more: I64) -> I64:
    """Moments inside the window at which something begins or ends on a thread."""
    trace, (low, high) = timeline.trace, timeline.window
    times = [more]
    for table in (trace.ops, trace.calls):
        rows = (table.thread == thread) & (table.end_ns > low) & (table.start_ns < high)
        times += [table.start_ns[rows], table.end_ns[rows]]
    cuts = distinct(np.concatenate(times))
    return cuts[(cuts >= low) & (cuts <= high)]


def _active(timeline: Timeline, thread: int, passes: list[tuple[int, int]]) -> tuple[I64, I64]:
    """Pieces of a thread that is not the main one: within its passes; without any, from its first to its last event."""
    cuts = _cuts(timeline, thread, np.empty(0, np.int64))
    if not passes:
        return cuts[:-1], cuts[1:]
    keep = [cuts[(cuts >= s) & (cuts <= e)] for s, e in passes]
    return np.concatenate([c[:-1] for c in keep]), np.concatenate([c[1:] for c in keep])


def _passes(timeline: Timeline, calls: Nesting, threads: list[int]) -> list[Pass]:
    """The backward passes that the main thread waits for: it records nothing in them, being inside `backward()`."""
    main = timeline.main_thread
    low, high = timeline.window
    main_cuts = _cuts(timeline, main, np.array([low, high], np.int64))
    found: dict[int, list[tuple[int, int, int]]] = {}
    for thread in threads:
        if thread == main or thread not in timeline.host.autograd:
            continue
        cuts = _cuts(timeline, thread, np.empty(0, np.int64))
        # Pieces that lie between the same two moments of the main thread are one pass.
        group = np.searchsorted(main_cuts, cuts[:-1], side="right")
        within = group == np.searchsorted(main_cuts, cuts[1:], side="left")
        for g in np.unique(group[within]).tolist():
            rows = np.flatnonzero(within & (group == g))
            found.setdefault(g, []).append((thread, int(cuts[rows[0]]), int(cuts[rows[-1] + 1])))
    passes = []
    for lanes in found.values():
        lanes.sort(key=lambda lane: lane[1])
        start, end = lanes[0][1], max(lane[2] for lane in lanes)
        in_call = calls.innermost(np.array([main], np.int32), np.array([start]))[0] >= 0
        if not in_call:  # a call lasts for its own reasons
            passes.append(Pass(start, end, tuple(lanes)))
    return sorted(passes, key=lambda p: p.start_ns)


def _handovers(pieces: Pieces, main: int, one: Pass) -> list[tuple[int, int, int]]:
    """The pass begins when the main thread has come to it, and that one goes on when all of it has ended."""

    def find(look, thread: int, t: int) -> int:
        return int(look(np.array([thread], np.int32), np.array([t]))[0])

    waiting = find(pieces.at, main, one.start_ns)
    caller = find(pieces.before, main, one.start_ns)
    pairs = []
    for thread, start, end in one.lanes:
        begin = find(pieces.at, thread, start)
        if caller >= 0:
            # What lies between is recorded nowhere: a thread that wakes up.
            pairs.append((caller, begin, start - int(pieces.end_ns[caller])))
        pairs.append((find(pieces.before, thread, end), waiting, 0))
        # A further lane is called by the one that runs before it.
        following = [lane for lane in one.lanes if lane[1] > start]
        if following:
            caller = find(pieces.before, thread, following[0][1])
    return pairs
