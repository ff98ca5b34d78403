"""What each host call does to the replay: launch, wait for a device, a stream or an event, or neither."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuprof.tracefile.trace import ABSENT, I64, MEMCPY, Mask, Trace

DEVICE_WAIT = re.compile(r"^(cuda|hip|cu)(Device|Ctx|Thread)Synchronize|^(cuda|hip)Free$|^cuMemFree(_v2)?$")
"""`cudaFree` waits for the device too."""
STREAM_WAIT = re.compile(r"^(cuda|hip|cu)StreamSynchronize")
EVENT_WAIT = re.compile(r"^(cuda|hip|cu)EventSynchronize")
RECORD = re.compile(r"^(cuda|hip|cu)EventRecord")
STREAM_WAITS_EVENT = re.compile(r"^(cuda|hip|cu)StreamWaitEvent")
WHOLE_COPY = re.compile(r"^(cuda|hip|cu)Memcpy(?!.*Async)")
"""Copies that return when they are done, whatever the memory."""


@dataclass(frozen=True, slots=True)
class CallKinds:
    """Masks over the calls of a trace."""

    waits_device: Mask
    waits_stream: Mask
    waits_event: Mask
    records: Mask
    stream_waits: Mask
    blocking_copy: Mask
    """Calls that copied to or from pageable memory, or by a call that does not return before the copy is done."""
    recorded: dict[int, tuple[int, int, int]]
    """Correlation of a waiting call → (stream that waits, stream waited for, correlation of the event's record). From
    CUPTI's synchronisation records, which most recordings lack."""


def call_kinds(trace: Trace, call_of_gpu: I64) -> CallKinds:
    """What every call is; `call_of_gpu` is the call's row per GPU event (-1 unknown)."""
    calls, gpu = trace.calls, trace.gpu

    def named(pattern: re.Pattern[str]) -> Mask:
        return trace.rows_named(calls.name, pattern.search)

    copy = named(WHOLE_COPY)
    pageable = trace.rows_named(gpu.name, lambda text: "Pageable" in text) & (gpu.kind == MEMCPY) & (call_of_gpu >= 0)
    copy[call_of_gpu[pageable]] = True
    return CallKinds(
        named(DEVICE_WAIT), named(STREAM_WAIT), named(EVENT_WAIT), named(RECORD), named(STREAM_WAITS_EVENT), copy,
        _recorded_waits(trace),
    )  # fmt: skip


def _recorded_waits(trace: Trace) -> dict[int, tuple[int, int, int]]:
    syncs = trace.syncs
    columns = (syncs.correlation, syncs.stream, syncs.wait_stream, syncs.wait_correlation)
    return {
        row[0]: (row[1], row[2], row[3]) for row in zip(*(c.tolist() for c in columns), strict=True) if row[0] != ABSENT
    }
