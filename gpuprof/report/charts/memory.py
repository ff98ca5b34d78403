"""GPU memory over the recording, or over the steps of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.memory.memory_events import CUDA
from gpuprof.report.charts.downsample import outline
from gpuprof.report.charts.recorded_columns import tables_of
from gpuprof.report.charts.style import QUIET, figure, painted
from gpuprof.report.numbers import gib
from gpuprof.report.palette import SERIES_PAINTS, Paint
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.tracefile.trace import ABSENT, Trace
from gpuprof.units import Convention, Points, Ratio, Share

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_RESERVED = "reserved_bytes"
_MOST_POINTS: Convention[Points] = 3000
_BOTH_PEAKS: Convention[Ratio] = 1.05
"""Both peaks are given if that of all steps is at least this many times that of the steps that were not recorded."""
_SIZE_DRAWN: Convention[Share] = 0.4
"""The GPU's size is drawn as a line if the peak is at least this share of it; else it would only flatten the chart."""


def memory(diagnosis: Diagnosis) -> Figure | None:
    """Memory held by torch's allocator, GiB: over time if allocations were recorded, else per step of the run.
    None if neither is known.
    """
    tables, folder = tables_of(diagnosis), diagnosis.folder
    traces, peak = _over_time(tables.timeline.trace, tables.timeline.window[0]) if tables is not None else ([], 0.0)
    title, axis = "GPU memory over the recording", f"seconds since the first recorded {diagnosis.unit}"
    if not traces and folder is not None:
        traces, peak = _over_steps(folder)
        title, axis = "GPU memory over the run", diagnosis.unit
    if not traces:
        return None
    capacity = next((gpu.memory_bytes for gpu in diagnosis.environment.gpus if gpu.memory_bytes), None)
    note = f"Peak {gib(peak)} GiB." if peak else ""
    if capacity and peak >= _SIZE_DRAWN * capacity:
        line = {
            "type": "scatter",
            "mode": "lines",
            "name": f"the GPU's memory, {gib(capacity)} GiB",
            "x": [min(trace["x"][0] for trace in traces), max(trace["x"][-1] for trace in traces)],
            "y": [capacity / 2**30] * 2,
            "line": {"width": 1.5, "dash": "dash"},
            "hoverinfo": "skip",
        }
        traces.append(painted(line, {"line.color": QUIET}))
    if capacity and peak:
        note = f"Peak {gib(peak)} of {gib(capacity)} GiB."
    usual = diagnosis.run.memory.peak_bytes if diagnosis.run else None
    if usual and peak > _BOTH_PEAKS * usual:
        note = f"{note.removesuffix('.')}, in the recorded {diagnosis.unit}s; {gib(usual)} GiB in the others."
    return figure(
        traces,
        {
            "hovermode": "x unified",
            "xaxis": {"title": {"text": axis}, "showgrid": False},
            "yaxis": {"title": {"text": "GiB"}, "rangemode": "tozero"},
        },
        title=title,
        note=note,
        legend="above",
        height=300,
    )


def _over_time(trace: Trace, origin_ns: int) -> tuple[list[dict[str, Any]], float]:
    """A line of reserved and one of used memory per device, and the most bytes in use."""
    events = trace.memory
    on_gpu = events.device_type == CUDA
    traces, peak = [], 0.0
    devices = np.unique(events.device[on_gpu]).tolist()
    for device in devices:
        of = f" GPU {device}" if len(devices) > 1 else ""
        for column, name, paint in _lines((_RESERVED, "allocated_bytes")):
            values = getattr(events, column)
            rows = np.flatnonzero(on_gpu & (events.device == device) & (values != ABSENT) & (values >= 0))
            rows = rows[np.argsort(events.time_ns[rows], kind="stable")]
            if not len(rows) or not values[rows].any():
                continue
            if column != _RESERVED:
                peak = max(peak, float(values[rows].max()))
            rows = rows[outline(values[rows], _MOST_POINTS // max(len(devices), 1))]
            traces.append(_line(name + of, paint, (events.time_ns[rows] - origin_ns) / 1e9, values[rows]))
    return traces, peak


def _over_steps(folder: RunFolder) -> tuple[list[dict[str, Any]], float]:
    """Lines of reserved, peak and allocated memory per step of the diagnosed rank; the peak in bytes."""
    steps = folder.steps
    traces, peak = [], 0.0
    for column, name, paint in _lines((_RESERVED, "peak_bytes", "allocated_bytes")):
        values = getattr(steps, column)
        rows = np.flatnonzero((steps.rank == folder.rank) & (values > 0))
        rows = rows[np.argsort(steps.step[rows], kind="stable")]
        if len(rows) < 2:
            continue
        if column != _RESERVED:
            peak = max(peak, float(values[rows].max()))
        rows = rows[outline(values[rows], _MOST_POINTS)]
        traces.append(_line(name, paint, steps.step[rows], values[rows]))
    return traces, peak


_NAMES = {
    _RESERVED: ("reserved by torch", SERIES_PAINTS[5]),
    "peak_bytes": ("peak of the step", SERIES_PAINTS[1]),
    "allocated_bytes": ("in use", SERIES_PAINTS[0]),
}


def _lines(columns: tuple[str, ...]) -> list[tuple[str, str, Paint]]:
    return [(column, *_NAMES[column]) for column in columns]


def _line(name: str, paint: Paint, x: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x.tolist(),
        "y": (values / 2**30).tolist(),
        "line": {"width": 1.5, "shape": "hv"},
        "hovertemplate": f"{name} %{{y:.2f}} GiB<extra></extra>",
    }
    return painted(line, {"line.color": paint})
