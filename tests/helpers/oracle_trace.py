"""The Kineto trace of a program that the replay's oracle ran."""

from __future__ import annotations

from pathlib import Path

from helpers.make_trace import AUTOGRAD, MAIN, TraceBuilder
from helpers.replay_oracle import (
    Executed,
    HostSpan,
    SyncRecord,
)

_TRACE_CATEGORY = {"copy": "gpu_memcpy", "memset": "gpu_memset"}


def write(executed: Executed, path: Path, *, records: bool, origin: int = 0) -> Path:
    """The Kineto trace of a run that began at `origin`; its GPU events are in the order of `executed.work`."""
    trace = TraceBuilder()
    for number, span in enumerate(executed.host, start=1):
        times = (origin + span.start, origin + span.end)
        if span.category == "cuda_runtime":
            trace.call(span.name, *times, tid=span.thread, correlation=span.correlation)
        else:
            args = {"External id": number, **(_autograd_args(span, number) if span.category == "cpu_op" else {})}
            trace.op(span.name, *times, span.thread, span.category, **args)
    for work in executed.work:
        cat = _TRACE_CATEGORY.get(work.kind, "kernel")
        node = {"graph node id": 1 + work.within_graph} if work.name == "gemm_graph" else {}
        times = (origin + work.start, origin + work.end)
        trace.gpu(work.name, *times, stream=work.stream, correlation=work.correlation, cat=cat, **node)
    for record in executed.records if records else ():
        trace.event(
            ph="X", cat="cuda_sync", name=record.name, pid=0, tid=record.stream, ts=origin + record.start,
            dur=record.end - record.start, args=_sync_args(record),
        )  # fmt: skip
    return trace.write(path)


def _autograd_args(span: HostSpan, number: int) -> dict[str, int]:
    """Ops of a forward pass have a sequence number; nodes of the backward also say whose forward it was."""
    if span.thread == MAIN:
        return {"Sequence number": number, "Fwd thread id": 0}
    if span.thread == AUTOGRAD and ("autograd::" in span.name or span.name.endswith("Backward0")):
        return {"Sequence number": number, "Fwd thread id": 1}
    return {}


def _sync_args(record: SyncRecord) -> dict[str, int | str]:
    args: dict[str, int | str] = {"cuda_sync_kind": record.name, "stream": record.stream, "device": 0}
    if record.name in ("Stream Wait Event", "Event Sync"):
        args["wait_on_stream"] = record.wait_stream
        args["wait_on_cuda_event_record_corr_id"] = record.wait_correlation
    return {**args, "correlation": record.correlation, "context": 1}
