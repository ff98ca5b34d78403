"""The contents of a recording as spans on lanes: CPU threads, GPU streams, waits, and everything else with a time.
Arguments have torch.profiler's keys, so that readers of its traces can read these.
"""

from __future__ import annotations

import numpy as np

from gpuprof.interop.drawn_lanes import Lane, Lanes
from gpuprof.interop.slices import separate_ranges
from gpuprof.interop.trace_events import FARTHEST_NS, Field, JsonTexts, Spans, constant, json_texts
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import (
    ABSENT,
    I32,
    I64,
    KERNEL,
    MEMCPY,
    MEMSET,
    OP,
    RUNTIME,
    Calls,
    Frames,
    GpuEvents,
    Ops,
    Trace,
)

HOST, GPU, REST = "host ", "gpu ", "rest"
"""Keys of groups; the number of the process or GPU is appended."""

_OP_FIELDS = {"External id": "external", "Sequence number": "sequence", "Fwd thread id": "forward_thread"}
_OP_TEXTS = {"Input Dims": "dims", "Input type": "types", "Input Strides": "strides", "Concrete Inputs": "concrete"}
_GPU_FIELDS = {
    "External id": "external",
    "device": "device",
    "stream": "stream",
    "correlation": "correlation",
    "registers per thread": "registers",
    "shared memory": "shared_bytes",
    "bytes": "bytes",
    "graph node id": "graph_node",
}
_SYNC_FIELDS = {
    "device": "device",
    "stream": "stream",
    "correlation": "correlation",
    "wait_on_stream": "wait_stream",
    "wait_on_cuda_event_record_corr_id": "wait_correlation",
}
_FRAME_FIELDS = {"Python id": "python_id", "Python parent id": "parent_id", "Python module id": "module_id"}


def recorded_lanes(timeline: Timeline, lanes: Lanes, texts: JsonTexts) -> dict[str, Spans]:
    """Spans of all tables of the trace, by the table's name; adds their lanes, GPUs first and the main thread next."""
    trace = timeline.trace
    found = {"gpu": _gpu(trace, lanes, texts), "syncs": _syncs(trace, lanes, texts)}
    thread = _host_lanes(timeline, lanes)
    found |= {
        "frames": _frames(trace.frames, thread, texts),
        "ops": _ops(trace, thread, lanes, texts),
        "calls": _calls(trace.calls, thread, texts),
        "other": _other(trace, lanes, texts),
    }
    return {name: spans for name, spans in found.items() if len(spans)}


def _host_lanes(timeline: Timeline, lanes: Lanes) -> I64:
    """Adds a lane per CPU thread, the main one first, then the busiest; returns the lane of each track, or -1."""
    trace = timeline.trace
    threads = np.concatenate([trace.ops.thread, trace.calls.thread, trace.frames.thread])
    counts = np.bincount(threads, minlength=len(trace.threads))
    lane_of = np.full(len(trace.threads), -1, np.int64)
    order = sorted(np.flatnonzero(counts).tolist(), key=lambda t: (t != timeline.main_thread, -counts[t]))
    for number in order:
        thread = trace.threads[number]
        group = HOST + thread.process
        lanes.groups.setdefault(group, f"{thread.process_name or 'process'} ({thread.process})")
        lane_of[number] = lanes.add(Lane(group, thread.name.strip() or f"thread {thread.thread}"))
    return lane_of


def _ops(trace: Trace, lane_of: I64, lanes: Lanes, texts: JsonTexts) -> Spans:
    ops = trace.ops
    lane, apart = lane_of[ops.thread], separate_ranges(trace)
    for number in np.unique(ops.thread[apart]).tolist():
        lane_of_thread = lanes.lanes[lane_of[number]]
        lane[apart & (ops.thread == number)] = lanes.add(
            Lane(lane_of_thread.group, f"ranges of {lane_of_thread.name}", -1)
        )
    fields = [*_numbers(ops, _OP_FIELDS)]
    for key, name in _OP_TEXTS.items():
        ids = getattr(ops, name)
        fields.append(Field(key, texts.values(ids), ids >= 0))
    fields.append(Field("Call stack", texts.plain(ops.stack), ops.stack >= 0))
    category = np.where(ops.kind == OP, *json_texts(["cpu_op", "user_annotation"])).astype(object)
    return _spans(ops, lane, texts, category, fields, rank=1, whole=_whole(ops, texts))


def _calls(calls: Calls, lane: I64, texts: JsonTexts) -> Spans:
    fields = _numbers(calls, {"External id": "external", "correlation": "correlation"})
    category = np.where(calls.kind == RUNTIME, *json_texts(["cuda_runtime", "cuda_driver"])).astype(object)
    return _spans(calls, lane[calls.thread], texts, category, fields, rank=2)


def _frames(frames: Frames, lane: I64, texts: JsonTexts) -> Spans:
    category = constant("python_function", len(frames))
    return _spans(frames, lane[frames.thread], texts, category, _numbers(frames, _FRAME_FIELDS), rank=0)


def _gpu(trace: Trace, lanes: Lanes, texts: JsonTexts) -> Spans:
    gpu = trace.gpu
    fields = [*_numbers(gpu, _GPU_FIELDS)]
    for key in ("grid", "block"):
        sides = [getattr(gpu, f"{key}_{axis}") for axis in "xyz"]
        given = np.all([side >= 0 for side in sides], axis=0)
        fields.append(Field(key, _vectors(sides), given))
    fields.append(Field("est. achieved occupancy %", gpu.occupancy, np.isfinite(gpu.occupancy)))
    names = {KERNEL: "kernel", MEMCPY: "gpu_memcpy", MEMSET: "gpu_memset"}
    category = json_texts(names[kind] for kind in sorted(names))[gpu.kind]
    lane = _stream_lanes(trace, lanes, gpu.device, gpu.stream, "stream {}")
    return _spans(gpu, lane, texts, category, fields, whole=_whole(gpu, texts))


def _syncs(trace: Trace, lanes: Lanes, texts: JsonTexts) -> Spans:
    syncs = trace.syncs
    lane = _stream_lanes(trace, lanes, syncs.device, syncs.stream, "waits of stream {}", order=1)
    return _spans(syncs, lane, texts, constant("cuda_sync", len(syncs)), _numbers(syncs, _SYNC_FIELDS))


def _other(trace: Trace, lanes: Lanes, texts: JsonTexts) -> Spans:
    """Annotations on GPU tracks go next to their stream; profiler overhead and marks get a separate group."""
    other, gpu = trace.other, trace.gpu
    lane_of = np.full(len(trace.threads), -1, np.int64)
    for number in np.unique(other.thread).tolist():
        thread = trace.threads[number]
        on_gpu = np.flatnonzero(gpu.thread == number)
        if len(on_gpu):
            group, name, order = f"{GPU}{gpu.device[on_gpu[0]]}", f"ranges of stream {gpu.stream[on_gpu[0]]}", 2
        else:
            group, order = REST, 0
            name = thread.name.strip() or " ".join(filter(None, (thread.process, thread.thread))) or "marks"
        if group == REST:
            lanes.groups.setdefault(REST, "the profiler's own")
        lane_of[number] = lanes.add(Lane(group, name, order))
    fields = _numbers(other, {"External id": "external"})
    return _spans(other, lane_of[other.thread], texts, texts.plain(other.category), fields)


def _stream_lanes(trace: Trace, lanes: Lanes, device: I32, stream: I64, name: str, order: int = 0) -> I64:
    """Adds a lane per device and stream that occurs; returns that of each row."""
    names = {gpu.device: gpu.name for gpu in trace.meta.gpus}
    pairs, inverse = np.unique(np.stack([device.astype(np.int64), stream]), axis=1, return_inverse=True)
    numbers = []
    for number, which in pairs.T.tolist():
        group = f"{GPU}{number}"
        lanes.groups.setdefault(group, f"GPU {number}" + (f" · {names[number]}" if number in names else ""))
        text = "?" if which == ABSENT else "all" if which == -1 else str(which)
        numbers.append(lanes.add(Lane(group, name.format(text), order)))
    return np.array(numbers, np.int64)[inverse.ravel()]


def _numbers(table: Ops | Calls | Frames | GpuEvents | object, keys: dict[str, str]) -> list[Field]:
    """The integer columns, each where the recording has a value."""
    found = []
    for key, name in keys.items():
        values = getattr(table, name)
        given = values >= 0 if values.dtype == np.int32 else values != ABSENT
        if given.any():
            found.append(Field(key, values, None if given.all() else given))
    return found


def _vectors(sides: list) -> np.ndarray:
    """JSON lists of three numbers; each distinct one is formatted once."""
    if not len(sides[0]):
        return np.empty(0, object)
    distinct, inverse = np.unique(np.stack(sides), axis=1, return_inverse=True)
    texts = np.empty(distinct.shape[1], object)
    texts[:] = [f"[{x},{y},{z}]" for x, y, z in distinct.T.tolist()]
    return texts[inverse.ravel()]


def _whole(table: Ops | GpuEvents, texts: JsonTexts) -> np.ndarray | None:
    """All arguments of rows for which the trace keeps them (collectives), "" for the others."""
    if not np.any(table.extra >= 0):
        return None
    values = texts.values(table.extra)
    is_object = np.array([value.startswith("{") for value in values.tolist()], bool)
    return np.where(is_object & (table.extra >= 0), values, "")


def _spans(table, lane: I64, texts: JsonTexts, category, fields, rank: int = 0, whole=None) -> Spans:
    start = table.start_ns.clip(-FARTHEST_NS, FARTHEST_NS)
    end = np.maximum(table.end_ns.clip(-FARTHEST_NS, FARTHEST_NS), start)
    backwards = table.end_ns < table.start_ns
    if backwards.any():  # the recorded duration is kept among the arguments
        fields = [*fields, Field("recorded dur (ns)", table.end_ns.clip(-FARTHEST_NS, FARTHEST_NS) - start, backwards)]
    return Spans(lane, start, end, texts.plain(table.name), category, tuple(fields), whole, _rank(table, rank))


def _rank(table, rank: int) -> I64:
    """Nesting rank: frames enclose ops, ops enclose calls; within a table by id."""
    ids = getattr(table, "python_id", getattr(table, "external", None))
    number = np.arange(len(table.start_ns)) if ids is None else ids.clip(0, 2**48)
    return number + (rank << 50)
