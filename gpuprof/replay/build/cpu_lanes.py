"""CPU threads as lanes of pieces: cut wherever an op, a call or a step begins or ends, and where a thread hands over. A
piece lies in one innermost op and at most one call, so a change of an op or a call changes whole pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.distinct import distinct
from gpuprof.tracefile.trace import I32, I64, Mask


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of all lanes, lane after lane, in order of time. Times are ns from the window's start."""

    lane: I32
    start_ns: I64
    end_ns: I64
    scope: I64
    call: I64
    waits: Mask
    """Whether the lane stalls because it has handed over to another one."""
    first: Mask
    """First piece of a lane."""
    ending: I64
    """Per call of the trace the piece at its end; -1 if there is none."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def before(self, lane: I32, t: I64) -> I64:
        """Index of the last piece of each lane that starts before t; -1 where there is none."""
        return _last_to_start(self.lane, self.start_ns, lane, t, "left")

    def at(self, lane: I32, t: I64) -> I64:
        """Index of the last piece of each lane that starts at or before t; -1 where there is none."""
        return _last_to_start(self.lane, self.start_ns, lane, t, "right")

    def active(self, lane: int, t: I64) -> I64:
        """Index of the last piece of one lane that starts at or before each t and does not stall; or -1."""
        rows = np.flatnonzero((self.lane == lane) & ~self.waits)
        k = np.searchsorted(self.start_ns[rows], t, side="right") - 1
        found = np.full(len(t), -1, np.int64)
        found[k >= 0] = rows[k[k >= 0]]
        return found


def _last_to_start(lanes: I32, start_ns: I64, lane: I32, t: I64, side: Literal["left", "right"]) -> I64:
    """The last piece of each `lane` that starts before t (with "right": before or at t); -1 without one."""
    found = np.full(len(t), -1, np.int64)
    for thread in np.unique(lane).tolist():
        rows = np.flatnonzero(lanes == thread)
        wanted = np.flatnonzero(lane == thread)
        k = np.searchsorted(start_ns[rows], t[wanted], side=side) - 1
        found[wanted[k >= 0]] = rows[k[k >= 0]]
    return found


class Handover(NamedTuple):
    """One thread continues once another one has reached a point."""

    source: int
    """The piece after which the other thread continues."""
    target: int
    """The piece with which it continues."""
    lag_ns: int


@dataclass(frozen=True, slots=True)
class Pass:
    """A span in which the main thread stalls while others (autograd's, one per device) run. Times are ns from the
    window's start."""

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


def cut_lanes(timeline: Timeline) -> tuple[Pieces, list[Handover]]:
    """All driving threads of the window as pieces, and the handovers between them."""
    main, low = timeline.main_thread, timeline.window[0]
    moments = {thread: _moments(timeline, thread) for thread in driving_threads(timeline)}
    passes = _passes(timeline, moments) if main in moments else []
    lanes = [
        _main_lane(timeline, own, passes) if thread == main else _other_lane(own, thread, passes)
        for thread, own in moments.items()
    ]
    lane = np.repeat(np.array(list(moments), np.int32), [len(start) for start, _, _ in lanes])
    start, end, waits = (np.concatenate(column) for column in zip(_NO_PIECES, *lanes, strict=True))
    scope, call = (nesting.innermost(lane, start + low) for nesting in (timeline.nesting, timeline.call_nesting))
    first = np.ones(len(lane), bool)
    first[1:] = lane[1:] != lane[:-1]
    calls = timeline.trace.calls
    ended = calls.end_ns - low
    ending = _last_to_start(lane, start, calls.thread, ended, "left")
    rows = np.flatnonzero(ending >= 0)
    last = ending[rows]
    ending[rows[(call[last] != rows) & (end[last] != ended[rows])]] = -1
    pieces = Pieces(lane, start, end, scope, call, waits, first, ending)
    return pieces, [pair for one in passes for pair in _handovers(pieces, main, one)]


_NO_PIECES = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, bool)


def _moments(timeline: Timeline, thread: int) -> I64:
    """Moments inside the window at which something begins or ends on a thread, each once, ascending."""
    trace, (low, high) = timeline.trace, timeline.window
    times = []
    for table in (trace.ops, trace.calls):
        rows = (table.thread == thread) & (table.end_ns > low) & (table.start_ns < high)
        times += [table.start_ns[rows] - low, table.end_ns[rows] - low]
    return _within(high - low, times)


def _within(length: int, times: list[I64]) -> I64:
    """The distinct times from 0 to a length, ascending."""
    found = distinct(np.concatenate(times))
    return found[(found >= 0) & (found <= length)]


def _main_lane(timeline: Timeline, moments: I64, passes: list[Pass]) -> tuple[I64, I64, Mask]:
    """(start, end, whether it stalls) of the pieces of the main thread: all of the window, cut by steps and passes
    too."""
    low, high = timeline.window
    begun, ended = np.array([(one.start_ns, one.end_ns) for one in passes], np.int64).reshape(-1, 2).T
    window, steps = np.array([0, high - low], np.int64), timeline.steps
    cuts = _within(high - low, [window, moments, steps.start_ns - low, steps.end_ns - low, begun, ended])
    start, end = cuts[:-1], cuts[1:]
    k = np.searchsorted(begun, start, side="right") - 1
    return start, end, (k >= 0) & (end <= ended[k]) if len(ended) else np.zeros(len(start), bool)


def _other_lane(moments: I64, thread: int, passes: list[Pass]) -> tuple[I64, I64, Mask]:
    """The same for another thread: within its passes; without any, from its first to its last event."""
    own = [(start, end) for one in passes for lane, start, end in one.lanes if lane == thread]
    parts = [moments[(moments >= start) & (moments <= end)] for start, end in own] or [moments]
    start = np.concatenate([part[:-1] for part in parts])
    return start, np.concatenate([part[1:] for part in parts]), np.zeros(len(start), bool)


def _passes(timeline: Timeline, moments: dict[int, I64]) -> list[Pass]:
    """The backward passes that the main thread waits for: it records nothing in them, being inside `backward()`."""
    main = timeline.main_thread
    found: dict[int, list[tuple[int, int, int]]] = {}
    for thread, own in moments.items():
        if thread == main or thread not in timeline.host.autograd:
            continue
        # Pieces that lie between the same two moments of the main thread are one pass.
        group = np.searchsorted(moments[main], own[:-1], side="right")
        within = group == np.searchsorted(moments[main], own[1:], side="left")
        for g in np.unique(group[within]).tolist():
            rows = np.flatnonzero(within & (group == g))
            found.setdefault(g, []).append((thread, int(own[rows[0]]), int(own[rows[-1] + 1])))
    passes = []
    for lanes in found.values():
        lanes.sort(key=lambda lane: lane[1])
        passes.append(Pass(lanes[0][1], max(lane[2] for lane in lanes), tuple(lanes)))
    passes.sort(key=lambda one: one.start_ns)
    begun = np.array([one.start_ns for one in passes], np.int64) + timeline.window[0]
    call = timeline.call_nesting.innermost(np.full(len(passes), main, np.int32), begun)
    # The main thread in a call is busy or waits for something else.
    return [one for one, row in zip(passes, call.tolist(), strict=True) if row < 0]


def _handovers(pieces: Pieces, main: int, one: Pass) -> list[Handover]:
    """A pass begins when the main thread reaches it, and the main thread continues when all of the pass has ended."""

    def find(look, thread: int, t: int) -> int:
        return int(look(np.array([thread], np.int32), np.array([t]))[0])

    waiting = find(pieces.at, main, one.start_ns)
    caller = find(pieces.before, main, one.start_ns)
    pairs = []
    for thread, start, end in one.lanes:
        begin = find(pieces.at, thread, start)
        if caller >= 0:
            # The time in between is not recorded: a thread wakes up.
            pairs.append(Handover(caller, begin, start - int(pieces.end_ns[caller])))
        pairs.append(Handover(find(pieces.before, thread, end), waiting, 0))
        # A further lane is called by the one that runs before it.
        following = [lane for lane in one.lanes if lane[1] > start]
        if following:
            caller = find(pieces.before, thread, following[0][1])
    return pairs
