"""How each device spends the window: the union over its streams, split into compute, communication, copy, idle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.timeline.categories import COMMUNICATION as COMMUNICATION_CATEGORY
from gpuprof.timeline.intervals import Intervals, clip, complement, join, union
from gpuprof.timeline.links import Links
from gpuprof.timeline.phases import OTHER, PHASES
from gpuprof.tracefile.distinct import rows_by_value
from gpuprof.tracefile.trace import ABSENT, I64, KERNEL, U8, Trace

COMPUTE, COMMUNICATE, COPY = 0, 1, 2


@dataclass(frozen=True, slots=True)
class DeviceTimeline:
    """One device inside the window [low, high). The four times sum to `high - low` exactly."""

    device: int
    low: int
    high: int
    compute_ns: int
    communication_ns: int
    """Not overlapped by compute."""
    copy_ns: int
    """Copies and sets, not overlapped by compute or communication."""
    idle_ns: int
    carry_in_ns: int
    carry_out_ns: int
    streams: int
    busy: Intervals
    gaps: Intervals
    awaited: I64
    """GPU row of the work that each gap waits for; -1 where the recording ends first."""


def kinds(trace: Trace, category: U8) -> U8:
    """COMPUTE, COMMUNICATE or COPY per GPU event."""
    kind = np.where(trace.gpu.kind == KERNEL, COMPUTE, COPY).astype(np.uint8)
    kind[category == COMMUNICATION_CATEGORY] = COMMUNICATE
    return kind


def device_timelines(trace: Trace, links: Links, kind: U8, window: tuple[int, int]) -> tuple[DeviceTimeline, ...]:
    """The timeline of every device that has GPU events in the trace."""
    gpu = trace.gpu
    return tuple(
        _device(trace, links, kind, window, device, rows) for device, rows in rows_by_value(gpu.device).items()
    )


def _device(trace: Trace, links: Links, kind: U8, window: tuple[int, int], device: int, rows: I64) -> DeviceTimeline:
    gpu = trace.gpu
    low, high = window
    by_kind = [rows[kind[rows] == k] for k in (COMPUTE, COMMUNICATE, COPY)]
    all_time = [union(gpu.start_ns[r], gpu.end_ns[r]) for r in by_kind]
    covered, reached = [], clip(all_time[0], low, high)
    covered.append(reached.total)
    for more in all_time[1:]:
        reached = join(reached, clip(more, low, high))
        covered.append(reached.total)
    gaps = complement(reached, low, high)
    begun = links.begun_ns[rows]
    # Work without a known launch that is already running when the window opens was launched before it.
    before = np.where(begun == ABSENT, gpu.start_ns[rows] < low, begun < low)
    inside = (begun != ABSENT) & (begun >= low) & (begun < high)
    carry_in = clip(union(gpu.start_ns[rows[before]], gpu.end_ns[rows[before]]), low, high)
    carry_out = clip(union(gpu.start_ns[rows[inside]], gpu.end_ns[rows[inside]]), high, np.iinfo(np.int64).max)
    return DeviceTimeline(
        device=device,
        low=low,
        high=high,
        compute_ns=covered[0],
        communication_ns=covered[1] - covered[0],
        copy_ns=covered[2] - covered[1],
        idle_ns=high - low - covered[2],
        carry_in_ns=carry_in.total,
        carry_out_ns=carry_out.total,
        streams=len(np.unique(gpu.stream[rows])),
        busy=reached,
        gaps=gaps,
        awaited=next_work(trace, links, rows, gaps.end),
    )


def next_work(trace: Trace, links: Links, rows: I64, t: I64) -> I64:
    """Of `rows`, the work that starts first at or after each `t` (of several, the one launched first), or -1."""
    gpu = trace.gpu
    rows = rows[gpu.end_ns[rows] > gpu.start_ns[rows]]
    order = rows[np.lexsort((links.launched_ns[rows], gpu.start_ns[rows]))]
    k = np.searchsorted(gpu.start_ns[order], t, side="left")
    found = np.full(len(t), -1, np.int64)
    inside = k < len(order)
    found[inside] = order[k[inside]]
    return found


def phase_times(
    trace: Trace,
    links: Links,
    kind: U8,
    phase: U8,
    timelines: tuple[DeviceTimeline, ...],
    window: tuple[int, int],
) -> dict[str, tuple[int, int]]:
    """Phase → (busy, idle) ns of the window, over all devices as one: busy while any of them works.

    Both sum over the phases to the window. Where work of two phases overlaps, compute takes precedence over
    communication, that over copies, and among equals the earlier phase. Idle time belongs to the phase of the work that
    ends it.
    """
    gpu = trace.gpu
    low, high = window
    times = {name: [0, 0] for name in PHASES}
    rows = np.flatnonzero((gpu.end_ns > low) & (gpu.start_ns < high))
    reached, before = clip(union(gpu.start_ns[:0], gpu.end_ns[:0]), low, high), 0
    for k in (COMPUTE, COMMUNICATE, COPY):
        for code, name in enumerate(PHASES):
            part = rows[(kind[rows] == k) & (phase[rows] == code)]
            if len(part):
                reached = join(reached, clip(union(gpu.start_ns[part], gpu.end_ns[part]), low, high))
                times[name][0] += reached.total - before
                before = reached.total
    idle = complement(join(*(t.busy for t in timelines)), low, high)
    awaited = next_work(trace, links, np.arange(len(gpu)), idle.end)
    idle_phase = np.full(len(awaited), OTHER, np.uint8)
    idle_phase[awaited >= 0] = phase[awaited[awaited >= 0]]
    for code, name in enumerate(PHASES):
        times[name][1] += int((idle.end - idle.start)[idle_phase == code].sum())
    return {name: (busy, idle) for name, (busy, idle) in times.items()}
