"""Passes a loaded Trace to HolisticTraceAnalysis 0.5.0 (HTA), for the analyses that its users know.

    analysis = trace_analysis(gpuprof.load("trace.json.gz"))
    analysis.get_temporal_breakdown(visualize=False)

HTA reads no file: it gets the table that its own parser would have made, built from the trace's columns.
Errors of its parser are not copied:
- It truncates starts and ends to whole microseconds: small kernels lose a third of their time, and those below 1 µs get
a duration of -1, on which several analyses fail. Here the nanoseconds stay, unless `rounded`.
- A CPU-side Inductor op with a `stream` argument is not a kernel.
- Work without a recorded launch is not joined to the first event of the file.
- `end` is on the same clock as `ts`; `iteration` follows the steps on the CPU, not those drawn on the GPU's track, and
work on stream 0 has one, too. Categories of the 2021 schema get today's names.
The results are HTA's own: it assumes one device per process, and treats a recorded wait as a kernel.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpuprof.errors import GpuprofError
from gpuprof.tracefile.trace import ABSENT, FLOW_FWDBWD, FLOW_LAUNCH, I32, I64, Other, Thread, Trace

if TYPE_CHECKING:
    import pandas as pd
    from hta.common.trace import Trace as HtaTrace
    from hta.common.trace_symbol_table import TraceSymbolTable
    from hta.trace_analysis import TraceAnalysis

NEEDS = "pip install 'gpuprof-toolkit[hta]' in an environment of its own (HTA 0.5.0 needs pandas < 3)"

_CATEGORIES = (
    *("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function"),
    *("kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"),
)
_INTEGER = re.compile(r"-?\d{1,18}")
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_RAW_ARGS = {"external_id": "External id"}
_ARROWS = {FLOW_LAUNCH: "ac2g", FLOW_FWDBWD: "fwdbwd"}
_TEXT_ARGS = {"input_dims": "dims", "input_type": "types", "input_strides": "strides"}
_NUMBER_ARGS = {
    "stream": "stream",
    "correlation": "correlation",
    "bytes": "bytes",
    "wait_on_stream": "wait_stream",
    "wait_on_cuda_event_record_corr_id": "wait_correlation",
    "external_id": "external",
}
"""HTA's columns → our columns that fill them."""


def trace_analysis(
    recording: Trace | Mapping[int, Trace],
    *,
    include_last_profiler_step: bool = False,
    rounded: bool = False,
) -> TraceAnalysis:
    """HTA's TraceAnalysis of one loaded Trace (as rank 0, HTA's default) or of several by rank.

    include_last_profiler_step: HTA's own option; where there are several steps, it leaves out the last.
    rounded: times as HTA's parser rounds them, to compare with numbers from HTA alone.
    Files that HTA writes (overlays, counters) contain the Trace's events and are named after the trace's file.
    Raises GpuprofError if HTA is not installed, or a trace has nothing for it.
    """
    traces = {0: recording} if isinstance(recording, Trace) else dict(sorted(recording.items()))
    if not traces:
        raise GpuprofError("no trace was given, so there is nothing to hand to HTA")
    hta_trace, analysis_type = _import_hta()
    tables = {rank: _table(trace) for rank, trace in traces.items()}
    base_ns = min(int(table["start_ns"].min()) for table in tables.values())
    handed = hta_trace(trace_files={}, trace_dir="")
    handed.trace_files = {rank: _json_path(trace.reading.path) for rank, trace in traces.items()}
    handed.meta_data = {rank: _metadata(trace) for rank, trace in traces.items()}
    for rank, table in tables.items():
        times = _rounded_times(table, base_ns) if rounded else _times(table, base_ns)
        handed.traces[rank] = _frame(traces[rank], table, times, handed.symbol_table)
    handed.align_and_filter_trace(include_last_profiler_step)
    for rank, frame in handed.traces.items():
        handed.traces[rank] = frame.set_index("index", drop=False).rename_axis(None)
    handed.min_ts = _ceil_us(base_ns) if rounded else base_ns / 1000
    handed.get_raw_trace_for_one_rank = lambda rank=0: _chrome_json(traces[rank])
    handed.is_parsed = True
    analysis = object.__new__(analysis_type)  # its __init__ would parse files
    analysis.t = handed
    return analysis


def _import_hta() -> tuple[type[HtaTrace], type[TraceAnalysis]]:
    try:
        from hta.common.trace import Trace as HtaTrace
        from hta.trace_analysis import TraceAnalysis
    except ImportError as error:
        raise GpuprofError(f"HolisticTraceAnalysis cannot be imported ({error}): {NEEDS}") from None
    import pandas as pd

    if int(pd.__version__.partition(".")[0]) >= 3:
        warnings.warn(
            f"pandas is {pd.__version__}, where HTA's critical path and kernel sequences fail: {NEEDS}",
            stacklevel=3,
        )
    return HtaTrace, TraceAnalysis


def _table(trace: Trace) -> pd.DataFrame:
    """Every event that takes time, one table of the Trace after another; -1 for missing values.

    `name` and `cat` are rows of `_texts`. Event i has HTA's index i + 1, because HTA reads an
    `index_correlation` of 0 as "not in the trace".
    """
    import pandas as pd

    other = _lasting(trace)
    tables = (trace.ops, trace.calls, trace.frames, trace.gpu, trace.syncs, other)
    if not sum(map(len, tables)):
        raise GpuprofError(f"{trace.reading.path}: no event takes time, so there is nothing to hand to HTA")
    first = len(trace.strings) + np.arange(len(_CATEGORIES))
    categories = (
        first[0:2][trace.ops.kind],
        first[2:4][trace.calls.kind],
        np.repeat(first[4], len(trace.frames)),
        first[5:8][trace.gpu.kind],
        np.repeat(first[8], len(trace.syncs)),
        other.category,
    )

    def column(field: str) -> I64:
        parts = [getattr(t, field) if hasattr(t, field) else np.full(len(t), ABSENT) for t in tables]
        values = np.concatenate(parts, dtype=np.int64)
        return np.where(values == ABSENT, -1, values)

    thread, numbers = column("thread"), {theirs: column(ours) for theirs, ours in _NUMBER_ARGS.items()}
    pid, tid = zip(*map(_track, trace.threads), strict=True) if trace.threads else ((), ())
    # A synchronisation is drawn on the track of its device and stream.
    track = {
        "pid": np.where(thread < 0, column("device"), _labels(pid, thread)),
        "tid": np.where(thread < 0, numbers["stream"], _labels(tid, thread)),
    }
    return pd.DataFrame(
        {"cat": np.concatenate(categories, dtype=np.int64), "name": column("name"), **track}
        | {"start_ns": column("start_ns"), "end_ns": column("end_ns"), **numbers}
    )


def _lasting(trace: Trace) -> Other:
    """Other events with a category and a duration, without the span of the recording itself (`Trace`)."""
    other = trace.other
    without = [trace.string_ids.get(text, -1) for text in ("", "Trace")]
    rows = (other.end_ns != other.start_ns) & (other.category >= 0) & ~np.isin(other.category, without)
    return other.take(rows)  # type: ignore[return-value]


def _texts(trace: Trace) -> list[str]:
    return [*trace.strings, *_CATEGORIES]


def _track(thread: Thread) -> tuple[int | str, int | str]:
    """Process and thread as in HTA: numbers, except in unusual files."""
    return _label(thread.process), _label(thread.thread)


def _label(text: str) -> int | str:
    return int(text) if _INTEGER.fullmatch(text) else text


def _labels(labels: Sequence[int | str], rows: I64) -> NDArray:
    """The label of each row, anything for row -1."""
    if all(isinstance(labels[row], int) for row in np.unique(rows[rows >= 0]).tolist()):
        return np.array([label if isinstance(label, int) else 0 for label in [*labels, 0]], np.int64)[rows]
    return np.array([*labels, 0], object)[rows]


def _times(table: pd.DataFrame, base_ns: int) -> dict[str, NDArray]:
    """Microseconds since `base_ns`, with the nanoseconds as decimals."""
    start_ns, end_ns = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    return {
        "ts": (start_ns - base_ns) / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "end": (end_ns - base_ns) / 1000,
    }


def _rounded_times(table: pd.DataFrame, base_ns: int) -> dict[str, NDArray]:
    """The same, rounded like HTA's parser: start up, end down."""
    first, last = _ceil_us(table["start_ns"].to_numpy()), table["end_ns"].to_numpy() // 1000
    base = _ceil_us(base_ns)
    return {"ts": first - base, "dur": last - first, "end": last - base}


def _ceil_us(ns: Any) -> Any:
    return -(-ns // 1000)


def _frame(trace: Trace, table: pd.DataFrame, times: dict[str, NDArray], symbols: TraceSymbolTable) -> pd.DataFrame:
    """The DataFrame that HTA works on; adds the names that occur in it to `symbols`."""
    import pandas as pd
    from hta.common.trace import transform_correlation_to_index

    frame = table.drop(columns=["start_ns", "end_ns"]).assign(**times, memory_bw_gbps=_bandwidth(table))
    frame.insert(0, "index", np.arange(1, len(table) + 1))
    frame.index = pd.Index(frame["index"].to_numpy())
    ids = _add_symbols(_texts(trace), frame[["cat", "name"]].to_numpy(), symbols)
    frame["cat"], frame["name"] = ids[frame["cat"]], ids[frame["name"]]
    for theirs, ours in _TEXT_ARGS.items():
        frame[theirs] = _json_values(trace.strings, getattr(trace.ops, ours), len(frame))
    frame = transform_correlation_to_index(frame, symbols)
    frame["iteration"] = _iterations(trace, frame)
    for column in frame.columns.difference(list(times)):
        if frame[column].dtype.kind == "i":
            frame[column] = pd.to_numeric(frame[column], downcast="integer")
    return frame


def _bandwidth(table: pd.DataFrame) -> NDArray:
    """GB/s of copies and sets, which is bytes per nanosecond of the recorded duration; 0 for all else."""
    moved, ns = table["bytes"].to_numpy(), (table["end_ns"] - table["start_ns"]).to_numpy()
    known = (moved >= 0) & (ns > 0)
    return np.where(known, moved / np.where(known, ns, 1), 0.0)


def _add_symbols(texts: list[str], used: NDArray, symbols: TraceSymbolTable) -> I64:
    """HTA's number of each text that is used."""
    rows = np.flatnonzero(np.bincount(used.ravel(), minlength=len(texts)))
    symbols.add_symbols([texts[row] for row in rows])
    ids = np.full(len(texts), -1, np.int64)
    ids[rows] = [symbols.sym_index[texts[row]] for row in rows]
    return ids


def _json_values(strings: Sequence[str], text: I32, size: int) -> NDArray:
    """Values of the ops' raw JSON texts, each distinct one decoded once; HTA's "-1" where there is none."""
    distinct, inverse = np.unique(text, return_inverse=True)
    values = np.empty(len(distinct), object)
    for i, string_id in enumerate(map(int, distinct)):
        values[i] = "-1" if string_id < 0 else _decoded(strings[string_id])
    out = np.full(size, "-1", object)
    out[: len(text)] = values[inverse]
    return out


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _iterations(trace: Trace, frame: pd.DataFrame) -> I64:
    """Number of the ProfilerStep that a host event, or the launch of GPU work, begins in; -1 for none."""
    names, strings = trace.ops.name, trace.strings
    number = np.full(len(strings), -1, np.int64)
    for string_id in map(int, np.unique(names)):
        found = _STEP.match(strings[string_id])
        number[string_id] = int(found[1]) if found else -1
    steps = np.flatnonzero(number[names] >= 0)
    ts, end = frame["ts"].to_numpy(), frame["end"].to_numpy()
    steps = steps[np.argsort(ts[steps], kind="stable")]
    at = np.searchsorted(ts[steps], ts, side="right") - 1
    inside = at >= 0
    inside[inside] = ts[inside] < end[steps[at[inside]]]
    iteration = np.full(len(frame), -1, np.int64)
    iteration[inside] = number[names[steps[at[inside]]]]
    on_gpu = frame["stream"].to_numpy() >= 0
    launch = frame["index_correlation"].to_numpy()[on_gpu]
    iteration[on_gpu] = np.where(launch > 0, iteration[launch - 1], -1)
    return iteration


def _metadata(trace: Trace) -> dict[str, Any]:
    """The metadata around the events of a file."""
    meta = trace.meta
    base = {} if meta.base_time_ns is None else {"baseTimeNanoseconds": meta.base_time_ns}
    gpus = [{"id": g.device, "name": g.name, **g.properties} for g in meta.gpus]
    return {
        "schemaVersion": 1,
        "deviceProperties": gpus,
        "distributedInfo": meta.distributed,
        **base,
        **meta.versions,
        **meta.options,
    }


def _json_path(path: str) -> str:
    """The file name given to HTA, which names its output by replacing `.json` in it; it must not name another file."""
    return path if path.endswith((".json", ".json.gz")) else f"{path}.json.gz"


def _chrome_json(trace: Trace) -> dict[str, Any]:
    """The recording as a Chrome trace with event i at HTA's index i; HTA marks events in it and writes it."""
    table, texts = _table(trace), _texts(trace)
    # Every Kineto file has such a span, and HTA looks for it.
    span = {
        "ph": "X",
        "cat": "Trace",
        "name": "PyTorch Profiler (0)",
        "pid": "Spans",
        "tid": "PyTorch Profiler",
    }
    events = [{**span, "ts": int(table["start_ns"].min()) / 1000, "dur": 0, "args": {"Op count": 0}}]
    columns = [table[c].tolist() for c in ("cat", "name", "pid", "tid", "start_ns", "end_ns", *_NUMBER_ARGS)]
    for category, name, pid, tid, start_ns, end_ns, *numbers in zip(*columns, strict=True):
        args = {_RAW_ARGS.get(k, k): n for k, n in zip(_NUMBER_ARGS, numbers, strict=True) if n != -1}
        if "stream" in args:
            args["device"] = pid
        event = {"ph": "X", "cat": texts[category], "name": texts[name], "pid": pid, "tid": tid}
        events.append(event | {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000, "args": args})
    return {**_metadata(trace), "traceEvents": [*events, *_arrows(trace), *_track_names(trace)]}


def _arrows(trace: Trace) -> Iterator[dict[str, Any]]:
    flows = trace.flows
    for kind, begins, number, thread, time_ns in zip(
        *(c.tolist() for c in (flows.kind, flows.begins, flows.id, flows.thread, flows.time_ns)), strict=True
    ):
        if kind in _ARROWS and number != ABSENT:
            pid, tid = _track(trace.threads[thread])
            name = {"cat": _ARROWS[kind], "name": _ARROWS[kind], "id": number}
            at = {"pid": pid, "tid": tid, "ts": time_ns / 1000}
            yield {**name, **at, "ph": "s"} if begins else {**name, **at, "ph": "f", "bp": "e"}


def _track_names(trace: Trace) -> Iterator[dict[str, Any]]:
    for thread in trace.threads:
        pid, tid = _track(thread)
        for what, text in (("process_name", thread.process_name), ("thread_name", thread.name)):
            if text:
                yield {"ph": "M", "ts": 0, "pid": pid, "tid": tid, "name": what, "args": {"name": text}}
