"""Runs in HTA's own venv: what HTA says of a recording by its own parser and on our Trace, and what gpuprof says.

    python tests/helpers/hta_script.py JOBS.json

JOBS.json holds name → [what, path, …]: `breakdowns` or `analyses` of traces, which are ranks 0, 1, … of one run. One
process does all of them, for HTA takes seconds to import. Prints one JSON object, name → result; of a job that failed
{"failed": traceback}. Times are microseconds, as in HTA.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import json
import logging
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as plotly
from hta.trace_analysis import TraceAnalysis

import gpuprof
from gpuprof.interop.hta import trace_analysis
from gpuprof.timeline.devices import COMMUNICATE, COMPUTE
from gpuprof.timeline.intervals import Intervals, join, union
from gpuprof.timeline.timeline import build_timeline

KEYS = ["ts", "dur", "cat", "pid", "tid", "name", "external_id", "correlation"]
"""Columns that identify an event, so that two tables can be compared."""


def main() -> None:
    gc.disable()  # garbage collection over what HTA parses takes a fifth of the time
    warnings.simplefilter("ignore")
    logging.getLogger("hta").setLevel(logging.CRITICAL)
    plotly.Figure.show = lambda *_, **__: None
    jobs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps({name: done(what, paths) for name, (what, *paths) in jobs.items()}, default=float))


def done(what: str, paths: list[str]) -> dict[str, Any]:
    try:
        return {"breakdowns": breakdowns, "analyses": analyses}[what](dict(enumerate(paths)))
    except Exception:
        return {"failed": traceback.format_exc()}


def breakdowns(files: dict[int, str]) -> dict[str, Any]:
    """HTA's results by itself and on our Trace, in whole µs and exact; differences of the two tables; gpuprof's
    numbers."""
    traces = {rank: gpuprof.load(path) for rank, path in files.items()}
    hta, rounded = TraceAnalysis(dict(files), ""), trace_analysis(traces, rounded=True)
    with nanoseconds():
        hta_exact = TraceAnalysis(dict(files), "")
    exact = trace_analysis(traces)
    return {
        "hta": results(hta),
        "ours": results(rounded),
        "hta_exact": results(hta_exact),
        "ours_exact": results(exact),
        "min_ts": [hta.t.min_ts, rounded.t.min_ts],
        "differences": {rank: differences(hta.t, rounded.t, rank) for rank in files},
        "end_is_consistent": all(bool((t["end"] == t["ts"] + t["dur"]).all()) for t in rounded.t.traces.values()),
        "gpuprof": {rank: own_numbers(trace) for rank, trace in traces.items()},
    }


@contextlib.contextmanager
def nanoseconds() -> Iterator[None]:
    """HTA's parser reads this switch each time."""
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    yield
    del os.environ["HTA_DISABLE_NS_ROUNDING"]


def results(analysis: TraceAnalysis) -> dict[str, Any]:
    """What the analyses return, or the name of the exception that they end with."""

    def kernels() -> Any:
        types, each = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10**9)
        return [records(types), records(each.sort_values(["rank", "kernel_type", "name"]).round(6))]

    def idle() -> Any:
        found, _ = analysis.get_idle_time_breakdown(ranks=list(analysis.t.traces), visualize=False)
        return records(found.sort_values(["rank", "stream", "idle_category"]))

    return {
        "temporal": attempt(lambda: records(analysis.get_temporal_breakdown(visualize=False))),
        "kernels": attempt(kernels),
        "idle": attempt(idle),
        "overlap": attempt(lambda: records(analysis.get_comm_comp_overlap(visualize=False))),
    }


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON has them: None for NaN, which equals nothing."""
    return table.astype(object).where(table.notna(), None).to_dict("records")


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def differences(theirs: Any, ours: Any, rank: int) -> dict[str, int]:
    """Column → number of events in which the two tables differ; "rows" if they have not the same events."""
    left, right = comparable(theirs, rank), comparable(ours, rank)
    if len(left) != len(right):
        return {"rows": len(right) - len(left)}
    counts = {}
    for column in left.columns:
        if left[column].dtype.kind == "f":
            same = np.isclose(left[column], right[column], rtol=1e-3, equal_nan=True)
        else:
            same = (left[column] == right[column]).to_numpy()
        if not same.all():
            counts[column] = int((~same).sum())
    return counts


def comparable(hta_trace: Any, rank: int) -> pd.DataFrame:
    """HTA's table with names for numbers, in an order of its own, and each link as what it leads to.

    `index` is a position in the file, and HTA leaves `end` on another clock than `ts`.
    """
    table, symbols = hta_trace.traces[rank], np.array(hta_trace.symbol_table.sym_table, object)
    link = table["index_correlation"].to_numpy()
    linked = table.reindex(link)[["name", "ts"]].set_axis(table.index)
    name = pd.Series(symbols[linked["name"].fillna(-1).astype(int)], table.index)
    out = table.drop(columns=["index", "index_correlation", "end"]).assign(
        name=symbols[table["name"]],
        cat=symbols[table["cat"]],
        launch=np.sign(link),
        linked_name=name.where(link > 0, ""),
        linked_ts=linked["ts"].where(link > 0, -1),
    )
    for column in ("pid", "tid", "input_dims", "input_type", "input_strides"):
        out[column] = out[column].map(str)
    return out.sort_values(KEYS).reset_index(drop=True)


def own_numbers(trace: gpuprof.Trace) -> dict[str, Any]:
    """gpuprof's times of the GPU work that HTA looks at: all, or where there are several steps, not the last."""
    gpu, calls, strings = trace.gpu, trace.calls, trace.strings
    steps = {
        (strings[name], start)
        for table in (trace.ops, trace.other)
        for name, start in zip(table.name.tolist(), table.start_ns.tolist(), strict=True)
        if strings[name].startswith("ProfilerStep")
    }
    rows = np.arange(len(gpu))
    if len({name for name, _ in steps}) > 1:
        before = calls.start_ns < max(start for _, start in steps)
        rows = np.flatnonzero(np.isin(gpu.correlation, calls.correlation[before]))
    timeline = build_timeline(trace)
    assert timeline is not None

    def cover(chosen: np.ndarray) -> Intervals:
        return union(gpu.start_ns[rows[chosen]], gpu.end_ns[rows[chosen]])

    kind, device = timeline.kind[rows], gpu.device[rows]
    compute, communication = cover(kind == COMPUTE), cover(kind == COMMUNICATE)
    both = compute.total + communication.total - join(compute, communication).total
    return {
        "kernels": len(rows),
        "span": int(gpu.end_ns[rows].max() - gpu.start_ns[rows].min()) / 1000,
        "busy": cover(rows >= 0).total / 1000,
        "busy_of_devices": [cover(device == d).total / 1000 for d in np.unique(device)],
        "compute": compute.total / 1000,
        "overlap_percent": 100 * both / communication.total if communication.total else None,
    }


def analyses(files: dict[int, str]) -> dict[str, Any]:
    """HTA's analyses on our Trace: how many rows each returns, and which events its overlay marks as critical."""
    analysis = trace_analysis({rank: gpuprof.load(path) for rank, path in files.items()})
    folder = Path(tempfile.mkdtemp())
    analysis.t.trace_files = {rank: str(folder / f"rank{rank}.json.gz") for rank in files}
    graph, _ = analysis.critical_path_analysis(0, "ProfilerStep", 0)
    overlay = analysis.overlay_critical_path_analysis(0, graph, str(folder), only_show_critical_events=False)
    names = analysis.t.traces[0]["name"].map(dict(enumerate(analysis.t.symbol_table.sym_table)))
    analysis.generate_trace_with_counters()
    calls: dict[str, Callable[[], Any]] = {
        "temporal breakdown": lambda: analysis.get_temporal_breakdown(visualize=False),
        "kernel breakdown": lambda: analysis.get_gpu_kernel_breakdown(visualize=False),
        "idle time breakdown": lambda: analysis.get_idle_time_breakdown(visualize=False),
        "communication overlap": lambda: analysis.get_comm_comp_overlap(visualize=False),
        "memory bandwidth": lambda: analysis.get_memory_bw_time_series()[0],
        "memory bandwidth summary": analysis.get_memory_bw_summary,
        "queue length": lambda: analysis.get_queue_length_time_series()[0],
        "queue length summary": analysis.get_queue_length_summary,
        "full queue": lambda: analysis.get_time_spent_blocked_on_full_queue(analysis.get_queue_length_time_series()),
        "launch statistics": lambda: analysis.get_cuda_kernel_launch_stats(visualize=False)[0],
        "kernels with annotations": lambda: analysis.get_gpu_kernels_with_user_annotations(0),
        "GPU annotations": lambda: analysis.get_gpu_user_annotation_breakdown(visualize=False),
        "host annotations": lambda: analysis.get_gpu_user_annotation_breakdown(False, visualize=False),
        "profiler steps": analysis.get_profiler_steps,
        "operators and their delays": lambda: analysis.get_aten_op_kernels_and_delay()[0],
        "kernel sequences": lambda: analysis.get_frequent_cuda_kernel_sequences("autograd::", str(folder)),
    }
    return {
        "results": {name: describe(attempt(call)) for name, call in calls.items()},
        "critical": sorted(names[list(graph.critical_path_events_set)]),
        "marked": sorted(e["name"] for e in read(overlay) if e.get("args", {}).get("critical") == 1 and "dur" in e),
        "counters": sum(e["ph"] == "C" for e in read(folder / "rank0_with_counters.json.gz")),
    }


def describe(result: Any) -> str | int:
    """Number of rows that were returned, or the error."""
    if isinstance(result, str) or result is None:
        return str(result)
    return len(result)


def read(path: str | Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)["traceEvents"]


if __name__ == "__main__":
    main()
