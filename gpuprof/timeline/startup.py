"""What of a recording is the program's start: loading code, making a context, first allocations, compiling.

It happens once, so it is no part of a step, and nothing that makes a step faster makes it shorter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gpuprof.timeline.intervals import EMPTY, Cover, Intervals, clip, join, union
from gpuprof.timeline.links import Links
from gpuprof.tracefile.trace import I64, Mask, Trace

LIBRARIES, CONTEXT, ALLOCATIONS, COMPILATION = "loading code", "creating the context", "first allocations", "compiling"

LONG_NS = 1_000_000
"""Calls that create or ask something take some µs, and a launch up to some hundred: longer ones wait for a library, a
context or a lock."""
MUCH_START_UP, MOST_START_UP = 0.2, 0.5
"""From the first share of the window on nothing is predicted from it, from the second on there is no verdict."""
ONCE = 0.9
"""Share of it in the first of several steps: what comes again in later ones is no start-up."""
IDLE_SHARE = 0.9
"""A launch blocks, too, where the queue is full: then the GPU is at work meanwhile."""

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
    """Host time of a window that is start-up."""

    window_ns: int
    parts: tuple[tuple[str, int], ...]
    """(what, ns), longest first; where two are at the same time the more telling counts. They sum to `ns`."""

    @property
    def ns(self) -> int:
        return sum(ns for _, ns in self.parts)

    @property
    def share(self) -> float:
        """Of the window."""
        return self.ns / self.window_ns if self.window_ns > 0 else 0.0


def start_up(trace: Trace, links: Links, start_ns: I64, end_ns: I64, allocations: bool) -> StartUp:
    """What of the steps' window is start-up: of several steps only what the first has and the others do not.

    `allocations`: whether those count, as they do where there are no steps.
    """
    low, high = int(start_ns[0]), int(end_ns[-1])
    seen, parts = EMPTY, []
    for name, spans in start_up_spans(trace, links, allocations):
        if len(start_ns) > 1 and clip(spans, low, int(end_ns[0])).total < ONCE * clip(spans, low, high).total:
            continue
        before = seen.total
        seen = join(seen, clip(spans, low, high))
        if seen.total > before:
            parts.append((name, seen.total - before))
    return StartUp(high - low, tuple(sorted(parts, key=lambda part: -part[1])))


def start_up_spans(trace: Trace, links: Links, allocations: bool) -> list[tuple[str, Intervals]]:
    """When the host was loading, creating, allocating or compiling, on any thread."""
    calls, ops, frames, other = trace.calls, trace.ops, trace.frames, trace.other
    took = calls.end_ns - calls.start_ns

    def spans(table, rows: Mask | I64) -> Intervals:
        return union(table.start_ns[rows], table.end_ns[rows])

    loading = trace.rows_named(calls.name, LOADING.search)
    loading[_lazy_launches(trace, links)] = True
    records = trace.rows_named(other.category, lambda text: text == "overhead")
    records &= trace.rows_named(other.name, _LOADING_RECORD.search)
    imports = spans(frames, trace.rows_named(frames.name, _IMPORTING_FRAME.search))
    creating = trace.rows_named(calls.name, _CREATING.search) & (took >= LONG_NS)
    compiling = join(
        spans(ops, trace.rows_named(ops.name, COMPILING.search)),
        spans(frames, trace.rows_named(frames.name, _COMPILING_FRAME.search)),
    )
    found = [
        (COMPILATION, compiling),
        (LIBRARIES, join(spans(calls, loading), spans(other, records), imports)),
        (CONTEXT, spans(calls, creating)),
    ]
    if allocations:
        rows = trace.rows_named(calls.name, _ALLOCATING.search) & (took >= LONG_NS)
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
    rows = np.unique(first[launching[first] & (calls.end_ns[first] - calls.start_ns[first] >= LONG_NS)])
    if not len(rows):
        return rows
    begin, end = calls.start_ns[rows], calls.end_ns[rows]
    busy = Cover(union(gpu.start_ns, gpu.end_ns)).between(begin, end)
    return rows[busy <= (1 - IDLE_SHARE) * (end - begin)]
