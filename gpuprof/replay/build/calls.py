"""What each host call does to the replay: launch, wait for a device, a stream or an event, or neither."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import ABSENT, F64, I32, I64, MEMCPY, Mask, Trace

DEVICE_WAIT = re.compile(r"^(cuda|hip|cu)(Device|Ctx|Thread)Synchronize|^(cuda|hip)Free$|^cuMemFree(_v2)?$")
"""Calls that wait for the device; `cudaFree` does, too."""
STREAM_WAIT = re.compile(r"^(cuda|hip|cu)StreamSynchronize")
EVENT_WAIT = re.compile(r"^(cuda|hip|cu)EventSynchronize")
RECORD = re.compile(r"^(cuda|hip|cu)EventRecord")
STREAM_WAITS_EVENT = re.compile(r"^(cuda|hip|cu)StreamWaitEvent")
WHOLE_COPY = re.compile(r"^(cuda|hip|cu)Memcpy(?!.*Async)")
"""Copies that return when they are done, whatever the memory."""


PAGEABLE = re.compile("Pageable")


@dataclass(frozen=True, slots=True)
class ReplayCalls:
    """The calls of a trace and what each does to the replay, as columns and masks over its rows. Times are ns from the
    window's start."""

    thread: I32
    name: I32
    correlation: I64
    start_ns: F64
    end_ns: F64
    in_window: Mask
    waits_device: Mask
    waits_stream: Mask
    waits_event: Mask
    records: Mask
    stream_waits: Mask
    blocking_copy: Mask
    recorded: dict[int, tuple[int, int, int]]
    """Correlation of a waiting call → (stream that waits, stream waited for, correlation of the event's record). From
    CUPTI's synchronisation records, which most recordings lack."""

    def __len__(self) -> int:
        return len(self.start_ns)


def calls_of(timeline: Timeline) -> ReplayCalls:
    """The calls of the timeline's trace."""
    trace, (low, high) = timeline.trace, timeline.window
    calls, recorded = trace.calls, _recorded_waits(trace)

    def named(pattern: re.Pattern[str]) -> Mask:
        return trace.rows_named(calls.name, pattern.search)

    return ReplayCalls(
        calls.thread,
        calls.name,
        calls.correlation,
        (calls.start_ns - low).astype(np.float64),
        (calls.end_ns - low).astype(np.float64),
        (calls.start_ns >= low) & (calls.end_ns <= high),
        named(DEVICE_WAIT),
        named(STREAM_WAIT),
        named(EVENT_WAIT),
        named(RECORD),
        named(STREAM_WAITS_EVENT),
        blocking_copies(timeline),
        recorded,
    )


def blocking_copies(timeline: Timeline) -> Mask:
    """Calls that copied to or from pageable memory, or that return only once their copy is done."""
    trace, call = timeline.trace, timeline.links.call
    found = trace.rows_named(trace.calls.name, WHOLE_COPY.search)
    pageable = trace.rows_named(trace.gpu.name, PAGEABLE.search) & (trace.gpu.kind == MEMCPY) & (call >= 0)
    found[call[pageable]] = True
    return found


def _recorded_waits(trace: Trace) -> dict[int, tuple[int, int, int]]:
    syncs = trace.syncs
    columns = (syncs.correlation, syncs.stream, syncs.wait_stream, syncs.wait_correlation)
    return {
        row[0]: (row[1], row[2], row[3]) for row in zip(*(c.tolist() for c in columns), strict=True) if row[0] != ABSENT
    }
