"""The part of a recording that is the program's start: loading code, creating a context, first allocations, compiling.

It happens once, so it is no part of a step, and nothing that makes a step faster makes it shorter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gpuprof.timeline.intervals import EMPTY, Cover, Intervals, clip, complement, join, union
from gpuprof.timeline.links import Links
from gpuprof.tracefile.trace import I64, OP, Mask, Trace
from gpuprof.units import Assumed, Share, WholeNs

LIBRARIES, CONTEXT, ALLOCATIONS, COMPILATION = "loading code", "creating the context", "first allocations", "compiling"

STARTUP_CALL_NS: Assumed[WholeNs] = 1_000_000
"""Calls that create or query something take a few µs, and a launch up to a few hundred: longer ones, ns, wait for a
library, a context or a lock."""
MUCH_START_UP: Assumed[Share] = 0.2
MOST_START_UP: Assumed[Share] = 0.5
"""Shares of the window that is the program's start: from the first on nothing is predicted, from the second on there is
no verdict."""
IN_FIRST_STEP: Assumed[Share] = 0.9
"""Smallest share of such time in the first of several steps: what recurs in later ones is not start-up."""
IDLE_SHARE: Assumed[Share] = 0.9
"""Smallest idle share of the GPU during such a launch: a launch also blocks if the queue is full, but then the GPU
works."""
FIRST_NS: Assumed[WholeNs] = 10_000_000
"""If the first op or call of its kind takes longer than this, ns, outside of calls and while the GPU has nothing to do,
it creates a context or loads a library: profilers record neither, only the op or call around them. Contexts take 100 ms
and more, libraries some 10 ms."""
_PLANS = re.compile(r"cudnn|miopen|convolution", re.IGNORECASE)
"""Ops of libraries that plan for every new shape: that recurs with the next one."""
LATER_OVER_FIRST: Assumed[Share] = 0.1
LATER_OVER_EARLIEST: Assumed[Share] = 0.5
"""Later ones of its kind take at most the first share of the earliest; if that comes before all GPU work, at most the
second. What takes long again is not start-up."""

LOADING = re.compile(r"^(cu(Module|Library)Load|nvrtcCompile|cuLinkComplete|hipModuleLoad|cudaLibraryLoad)")
"""Driver calls that bring new code to the GPU."""
_LOADING_RECORD = re.compile(r"^(Lazy Function Loading|Runtime Triggered Module Loading)")
"""Overhead records that are the program's, not the profiler's."""
_CREATING = re.compile(
    r"^(cuInit|cuCtxCreate|cuDevicePrimaryCtxRetain"
    r"|(cuda|hip|cu)(StreamCreate|EventCreate|SetDevice|GetDevice|DeviceGet|FuncGet|FuncSet|Occupancy|Init))"
)
_ALLOCATING = re.compile(r"^(cuda|hip|cu)(Malloc|Free|HostAlloc|HostRegister|MemCreate|MemMap|Mem(Host)?Alloc)")
_LAUNCH = re.compile(r"^(cuda|hip|cu)(Ext|Module)*Launch(?!HostFunc)")
_OWN_REASONS = re.compile(r"^(cuda|hip|cu)\w*(Synchronize|Memcpy|Memset|Launch|WaitEvent|WaitValue|Callback)")
COMPILING = re.compile(
    r"\(dynamo_timed\)|^(_compile\.|compile_fx|entire_frame_compile|backend_compile|inductor_compile|GraphLowering\."
    r"|async_compile|CachingAutotuner\.(precompile|benchmark)|create_aot_dispatcher_function)"
)
"""Ranges of Dynamo and Inductor at work."""
_COMPILING_FRAME = re.compile(
    r"torch/_dynamo/convert_frame.*: (_compile|compile_inner|transform)$"
    r"|torch/_inductor/.*: (fx_codegen_and_compile|codegen_and_compile|_?compile_fx(_inner)?)$"
    r"|triton/compiler/compiler\.py.*: compile$"
)
_IMPORTING_FRAME = re.compile(r"^<frozen importlib\._bootstrap>.*: _load_unlocked$")
"""A module that is imported for the first time."""


@dataclass(frozen=True, slots=True)
class StartUp:
    """CPU time of a window that is start-up."""

    window_ns: int
    parts: tuple[tuple[str, int], ...]
    """(what, ns), longest first; where two overlap, the more specific counts. They sum to `ns`."""

    @property
    def ns(self) -> int:
        return sum(ns for _, ns in self.parts)

    @property
    def share(self) -> float:
        """Share of the window, 0 to 1."""
        return self.ns / self.window_ns if self.window_ns > 0 else 0.0


def start_up(trace: Trace, links: Links, start_ns: I64, end_ns: I64, allocations: bool) -> StartUp:
    """The part of the steps' window that is start-up: of several steps only what the first has and the others do not.

    `allocations`: whether those count, as they do where there are no steps. Contexts and code may come in any one step.
    """
    low, high = int(start_ns[0]), int(end_ns[-1])
    seen, parts = EMPTY, []
    for name, spans in start_up_spans(trace, links, allocations):
        each = Cover(spans).between(start_ns, end_ns)
        anywhere = name in (LIBRARIES, CONTEXT) and each.max() >= FIRST_NS
        most = each.max() if anywhere else each[0]
        if len(start_ns) > 1 and most < IN_FIRST_STEP * clip(spans, low, high).total:
            continue
        before = seen.total
        seen = join(seen, clip(spans, low, high))
        if seen.total > before:
            parts.append((name, seen.total - before))
    return StartUp(high - low, tuple(sorted(parts, key=lambda part: -part[1])))


def start_up_spans(trace: Trace, links: Links, allocations: bool) -> list[tuple[str, Intervals]]:
    """When the CPU was loading, creating, allocating or compiling, on any thread."""
    calls, ops, frames, other = trace.calls, trace.ops, trace.frames, trace.other
    took = calls.end_ns - calls.start_ns

    def spans(table, rows: Mask | I64) -> Intervals:
        return union(table.start_ns[rows], table.end_ns[rows])

    loading = trace.rows_named(calls.name, LOADING.search)
    loading[_lazy_launches(trace, links)] = True
    records = trace.rows_named(other.category, lambda text: text == "overhead")
    records &= trace.rows_named(other.name, _LOADING_RECORD.search)
    imports = spans(frames, trace.rows_named(frames.name, _IMPORTING_FRAME.search))
    creating = trace.rows_named(calls.name, _CREATING.search) & (took >= STARTUP_CALL_NS)
    creating |= _first_call(trace)
    created, loaded = _within_first_ops(trace)
    compiling = join(
        spans(ops, trace.rows_named(ops.name, COMPILING.search)),
        spans(frames, trace.rows_named(frames.name, _COMPILING_FRAME.search)),
    )
    found = [
        (COMPILATION, compiling),
        (LIBRARIES, join(spans(calls, loading), spans(other, records), imports, loaded)),
        (CONTEXT, join(spans(calls, creating), created)),
    ]
    if allocations:
        rows = trace.rows_named(calls.name, _ALLOCATING.search) & (took >= STARTUP_CALL_NS)
        found.append((ALLOCATIONS, spans(calls, rows)))
    return found


def _lazy_launches(trace: Trace, links: Links) -> I64:
    """Rows of the calls that launch a kernel for the first time and take long while the GPU has nothing to do: its code
    is loaded first."""
    calls, gpu = trace.calls, trace.gpu
    events = np.flatnonzero(links.call >= 0)
    events = events[np.argsort(calls.start_ns[links.call[events]], kind="stable")]
    first = links.call[events[np.unique(gpu.name[events], return_index=True)[1]]]
    launching = trace.rows_named(calls.name, _LAUNCH.search)
    rows = np.unique(first[launching[first] & (calls.end_ns[first] - calls.start_ns[first] >= STARTUP_CALL_NS)])
    if not len(rows):
        return rows
    begin, end = calls.start_ns[rows], calls.end_ns[rows]
    busy = Cover(union(gpu.start_ns, gpu.end_ns)).between(begin, end)
    return rows[busy <= (1 - IDLE_SHARE) * (end - begin)]


def _first_call(trace: Trace) -> Mask:
    """The recording's first call, if it takes as long as creating a context: the first call that needs a context
    creates it, but calls that wait, copy or launch may take long for other reasons."""
    calls, found = trace.calls, np.zeros(len(trace.calls), bool)
    if not len(calls):
        return found
    first = int(calls.start_ns.argmin())
    name = trace.text(int(calls.name[first])) or ""
    lasts = calls.end_ns[first] - calls.start_ns[first] >= FIRST_NS
    found[first] = lasts and not _OWN_REASONS.search(name) and calls.start_ns[first] < _first_work_ns(trace)
    return found


def _first_work_ns(trace: Trace) -> int:
    return int(trace.gpu.start_ns.min()) if len(trace.gpu) else int(np.iinfo(np.int64).max)


def _within_first_ops(trace: Trace) -> tuple[Intervals, Intervals]:
    """When ops create a context, and when they load a library: stretches outside of calls and of other ops, in the
    first op of a name, while the GPU has nothing to do. A context only before all GPU work, in an op that makes the
    first call; a library only where later ops of that name are far shorter."""
    ops, calls = trace.ops, trace.calls
    took = ops.end_ns - ops.start_ns
    long = np.flatnonzero((ops.kind == OP) & (took >= FIRST_NS))
    if not len(long) or not len(calls) or not len(trace.gpu):
        return EMPTY, EMPTY
    busy = Cover(union(trace.gpu.start_ns, trace.gpu.end_ns))
    first_call, first_work = int(calls.start_ns.min()), _first_work_ns(trace)
    created, loaded = [], []
    for name in np.unique(ops.name[long]).tolist():
        alike = np.flatnonzero((ops.name == name) & (ops.kind == OP))
        row = int(alike[ops.start_ns[alike].argmin()])
        begin, end, again = int(ops.start_ns[row]), int(ops.end_ns[row]), took[alike[alike != row]]
        creates = begin <= first_call < end and begin < first_work
        if not creates and (_PLANS.search(trace.strings[name]) or COMPILING.search(trace.strings[name])):
            continue
        longest = int(again.max()) if len(again) else (0 if creates else took[row])
        if took[row] < FIRST_NS or longest > (LATER_OVER_EARLIEST if creates else LATER_OVER_FIRST) * took[row]:
            continue
        for low, high in _own_stretches(trace, row, min(end, first_work) if creates else end):
            if busy.between(np.array([low]), np.array([high]))[0] <= (1 - IDLE_SHARE) * (high - low):
                (created if creates else loaded).append((low, high))
    return _joined(created), _joined(loaded)


def _own_stretches(trace: Trace, row: int, until: int) -> list[tuple[int, int]]:
    """Stretches of an op of at least FIRST_NS in which its thread is in no other op and in no call."""
    ops, calls = trace.ops, trace.calls
    begin, end, thread = int(ops.start_ns[row]), int(ops.end_ns[row]), ops.thread[row]
    inner = (ops.thread == thread) & (ops.start_ns >= begin) & (ops.end_ns <= end) & (ops.kind == OP)
    inner[row] = False
    inner &= (ops.end_ns - ops.start_ns) < end - begin  # an op that spans all of it is another name for it
    within = (calls.thread == thread) & (calls.start_ns >= begin) & (calls.end_ns <= end)
    covered = union(
        np.concatenate([ops.start_ns[inner], calls.start_ns[within]]),
        np.concatenate([ops.end_ns[inner], calls.end_ns[within]]),
    )
    free = complement(covered, begin, max(until, begin))
    return [
        (low, high) for low, high in zip(free.start.tolist(), free.end.tolist(), strict=True) if high - low >= FIRST_NS
    ]


def _joined(spans: list[tuple[int, int]]) -> Intervals:
    table = np.array(spans, np.int64).reshape(-1, 2)
    return union(table[:, 0], table[:, 1])
