"""Why a device was idle: every gap, split by cause to the nanosecond.

A gap ends when some work starts. Once that work is launched, the rest of the gap is due to the device (a dependency, or
the time between kernels). Before that the CPU had not launched it yet, and the cause is what its threads were doing:
first the thread that makes the launch, then, while that one has no event, the main thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.replay.build.calls import blocking_copies
from gpuprof.timeline.cpu import cpu_compute
from gpuprof.timeline.cpu.dispatch import bridged, has_ops
from gpuprof.timeline.cpu.overhead import profiler_overhead
from gpuprof.timeline.cpu.runtime_calls import ALLOCATOR_CALL, SYNC_CALL
from gpuprof.timeline.cpu.silence import holes
from gpuprof.timeline.cpu.slow_calls import slow_spans
from gpuprof.timeline.frames import FrameIndex
from gpuprof.timeline.intervals import EMPTY, Cover, Intervals, join, union
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import DATA, OTHER
from gpuprof.tracefile.trace import ABSENT, I32, I64, U8

if TYPE_CHECKING:
    from gpuprof.timeline.timeline import Timeline

CAUSES = (
    "device",
    "input",
    "transfer",
    "allocator",
    "sync",
    "profiler",
    "cpu_compute",
    "slow_call",
    "launch",
    "python",
    "communication",
    "unknown",
)
"""`communication` stays empty for a single rank: waiting for a peer happens inside a collective, which is busy time."""
COLLECTING = "garbage_collection"
IDLE_CAUSES = (*CAUSES, COLLECTING)
"""Causes of idle time in a step without the profiler: garbage collection is timed by the run and is not an event of
the recording."""
_DEVICE, _PYTHON, _UNKNOWN = CAUSES.index("device"), CAUSES.index("python"), CAUSES.index("unknown")
_HOST_LEVELS = ("input", "transfer", "allocator", "sync", "profiler", "cpu_compute", "slow_call", "launch")

SYNC_OP = re.compile(r"^aten::(_local_scalar_dense|item|nonzero\w*|is_nonzero|_nonzero\w*)$")
"""Ops that copy a value to the CPU to read it: their copy is a synchronisation, not a transfer of data."""


@dataclass(frozen=True, slots=True)
class GapColumns:
    """All gaps of all devices, as columns; rows are in order of device and time."""

    device: I32
    start_ns: I64
    end_ns: I64
    awaited: I64
    """GPU row of the work that ends the gap, or -1."""
    phase: U8
    cause: U8
    """The cause with most of the gap's time, index into CAUSES."""
    by_cause: I64
    """[gaps, causes] ns; rows sum to the gap exactly."""
    op: I64
    """Row of the op that launches the awaited work, or -1."""
    module: I32
    """String id of the nn.Module, or -1."""
    frame: I32
    """String id of the Python frame that it launches from, or -1."""

    @property
    def ns(self) -> I64:
        return self.end_ns - self.start_ns

    @property
    def unlaunched_ns(self) -> I64:
        """The part of each gap before the awaited work was launched; 0 where that is not known."""
        return self.ns - self.by_cause[:, _DEVICE] - self.by_cause[:, _UNKNOWN]


def find_gaps(timeline: Timeline) -> GapColumns:
    """The gaps of every device with their causes."""
    trace, links = timeline.trace, timeline.links
    parts = timeline.devices
    device = np.concatenate([np.full(len(d.gaps), d.device, np.int32) for d in parts] or [np.empty(0, np.int32)])
    start = np.concatenate([d.gaps.start for d in parts] or [np.empty(0, np.int64)])
    end = np.concatenate([d.gaps.end for d in parts] or [np.empty(0, np.int64)])
    awaited = np.concatenate([d.awaited for d in parts] or [np.empty(0, np.int64)])
    has = awaited >= 0
    phase = np.full(len(start), OTHER, np.uint8)
    phase[has] = timeline.phase[awaited[has]]
    by_cause = _partition(timeline, start, end, awaited)
    op = np.full(len(start), -1, np.int64)
    op[has] = links.op[awaited[has]]
    begun = np.full(len(start), ABSENT)
    begun[has] = links.begun_ns[awaited[has]]
    thread = np.full(len(start), -1, np.int32)
    thread[has] = links.thread[awaited[has]]
    frames = FrameIndex(trace, timeline.nesting)
    return GapColumns(
        device=device,
        start_ns=start,
        end_ns=end,
        awaited=awaited,
        phase=phase,
        cause=by_cause.argmax(axis=1).astype(np.uint8) if len(start) else np.empty(0, np.uint8),
        by_cause=by_cause,
        op=op,
        module=frames.module(thread, begun, np.where(has, links.scope[awaited], -1)),
        frame=frames.frame(thread, begun, op),
    )


def _partition(timeline: Timeline, start: I64, end: I64, awaited: I64) -> I64:
    """Nanoseconds of every gap per cause."""
    links = timeline.links
    by_cause = np.zeros((len(start), len(CAUSES)), np.int64)
    if not len(start):
        return by_cause
    # A gap that no work ends is due to the CPU only if the recording has launches at all.
    host = bool(np.any(links.launched_ns != ABSENT))
    launched = np.where(awaited >= 0, links.launched_ns[awaited], end)
    known = (launched != ABSENT) & host
    by_cause[~known, _UNKNOWN] = (end - start)[~known]
    launched = np.clip(launched, start, end)
    by_cause[known, _DEVICE] = (end - launched)[known]
    thread = np.where(awaited >= 0, links.thread[awaited], timeline.main_thread)
    levels = HostLevels(timeline)
    for t in np.unique(thread[known]).tolist():
        rows = np.flatnonzero(known & (thread == t))
        lows, highs = start[rows], launched[rows]
        reached, before = EMPTY, np.zeros(len(rows), np.int64)
        for lane in dict.fromkeys((t, timeline.main_thread)):
            for level, part in zip(_HOST_LEVELS, levels.of(lane), strict=True):
                if not len(part):
                    continue
                reached = join(reached, part)
                covered = Cover(reached).between(lows, highs)
                by_cause[rows, CAUSES.index(level)] += covered - before
                before = covered
        silent = Cover(join(reached, holes(timeline))).between(lows, highs) - before
        by_cause[rows, _UNKNOWN] += silent
        by_cause[rows, _PYTHON] += highs - lows - before - silent
    return by_cause


class HostLevels:
    """When each CPU thread does what, as unions of intervals in order of precedence (`_HOST_LEVELS`)."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._known: dict[int, tuple[Intervals, ...]] = {}
        trace = timeline.trace
        self._transfer, self._sync, self._allocator = calls_by_cause(timeline)
        self._profiler = profiler_overhead(trace)
        self._has_ops = has_ops(trace)

    def of(self, thread: int) -> tuple[Intervals, ...]:
        if thread not in self._known:
            self._known[thread] = self._build(thread)
        return self._known[thread]

    def _build(self, thread: int) -> tuple[Intervals, ...]:
        timeline = self._timeline
        ops, calls = timeline.trace.ops, timeline.trace.calls
        on_ops = ops.thread == thread
        data = on_ops & (timeline.host.op == DATA)
        on_calls = calls.thread == thread

        def spans(rows: np.ndarray) -> Intervals:
            rows = rows & on_calls
            return union(calls.start_ns[rows], calls.end_ns[rows])

        # Annotations are not work: a thread that is only inside ProfilerStep#3 is in Python.
        work = on_ops & (ops.kind == 0)
        launch = join(union(ops.start_ns[work], ops.end_ns[work]), spans(on_calls))
        if not self._has_ops:
            launch = bridged(launch)
        return (
            union(ops.start_ns[data], ops.end_ns[data]),
            spans(self._transfer),
            spans(self._allocator),
            spans(self._sync),
            self._profiler,
            cpu_compute.computing_spans(timeline, thread),
            slow_spans(timeline, thread),
            launch,
        )


def calls_by_cause(timeline: Timeline) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masks over the calls: blocking copies, synchronisations, allocator calls."""
    trace = timeline.trace
    calls, ops = trace.calls, trace.ops
    sync = trace.rows_named(calls.name, lambda text: SYNC_CALL.search(text))
    allocator = trace.rows_named(calls.name, lambda text: ALLOCATOR_CALL.search(text))
    copy = blocking_copies(timeline)
    # A copy inside `.item()` or `nonzero` reads a value: a synchronisation.
    rows = np.flatnonzero(copy)
    looks = np.array([bool(SYNC_OP.search(text)) for text in trace.strings] + [False])
    scope = timeline.nesting.innermost(calls.thread[rows], calls.start_ns[rows])
    looking = climb(scope, timeline.nesting.parent, looks[ops.name]) >= 0
    sync[rows[looking]] = True
    copy[rows[looking]] = False
    return copy, sync, allocator
