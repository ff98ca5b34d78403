"""How long each step took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof import runfile
from gpuprof.diagnosis.mean_step.baseline import durations
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.charts.downsample import outline
from gpuprof.report.charts.style import figure, painted
from gpuprof.report.numbers import amount, duration
from gpuprof.report.palette import BUDGET_PAINTS, SERIES_PAINTS, Paint
from gpuprof.timeline.unit import Unit
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.units import Convention, Points, Ratio, Steps

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_FEWEST_STEPS: Convention[Steps] = 3
_MOST_POINTS: Convention[Points] = 1500
_CUT_RATIO: Convention[Ratio] = 4.0
"""A step this many times longer than the longest median is drawn at the edge: it would flatten all others."""

_STAGES = (
    ("warm-up", ("settle",), BUDGET_PAINTS["warm_up"]),
    ("without the profiler", ("baseline_free",), BUDGET_PAINTS["usual"]),
    ("synchronised", ("baseline_sync",), SERIES_PAINTS[5]),
    ("warm-up", ("warmup",), BUDGET_PAINTS["warm_up"]),
    ("recorded", runfile.WINDOWS, SERIES_PAINTS[0]),
    ("without the profiler", ("sampling", "after"), BUDGET_PAINTS["usual"]),
)
"""What steps were used for: (label, stages, colour). One median is drawn per row."""
_WARM_UP = _STAGES[0][0]
_RECORDED = _STAGES[4]


def steps(diagnosis: Diagnosis) -> Figure | None:
    """The time of each step over the run, or of each recorded step; None for fewer than three."""
    folder = diagnosis.folder
    series = _of_run(folder) if folder is not None else []
    if sum(len(x) for _, _, x, _ in series) < _FEWEST_STEPS:
        series = _of_recording(diagnosis)
    if not series:
        return None
    scale, unit = (1e9, "s") if max(float(np.median(ns)) for _, _, _, ns in series) >= 2e9 else (1e6, "ms")
    limit = _CUT_RATIO * max(float(np.median(ns)) for name, _, _, ns in series if name != _WARM_UP or len(series) == 1)
    traces, beyond = [], 0
    named: set[str] = set()
    for name, paint, x, ns in series:
        far = ns > limit
        beyond += int(far.sum())
        traces.append(
            _points(name, paint, x, ns, far, limit, scale, diagnosis.unit) | {"showlegend": name not in named}
        )
        named.add(name)
        if name != _WARM_UP and len(x) >= _FEWEST_STEPS:
            traces.append(_median(name, paint, x, ns, scale))
    note = (
        f"{amount(beyond, diagnosis.unit)} far above the others drawn at the edge." if beyond else "Lines are medians."
    )
    top = max(float(np.minimum(ns, limit).max()) for _, _, _, ns in series) / scale
    return figure(
        traces,
        {
            "xaxis": {"title": {"text": diagnosis.unit}, "showgrid": False},
            "yaxis": {"title": {"text": f"{unit} {diagnosis.unit.a}"}, "range": [0, top * 1.08]},
        },
        title=f"{diagnosis.unit.capitalize()}s",
        note=note,
        legend="above",
        height=280,
    )


Series = tuple[str, Paint, np.ndarray, np.ndarray]
"""Name, colour, numbers of the steps, their durations [ns]."""


def _of_run(folder: RunFolder) -> list[Series]:
    """The steps of the diagnosed rank in groups. Steps of unknown time are left out, as is the first one, whose
    beginning was not seen."""
    found = []
    columns = folder.steps
    seen = columns.step[columns.rows("settle", folder.rank)]
    first = int(seen.min()) if len(seen) else -1
    for name, stages, paint in _STAGES:
        rows, times = [], []
        for stage in stages:
            mine = columns.rows(stage, folder.rank)
            whole = folder.own.stage(stage)
            ns, count = (whole.ns, whole.steps) if whole else (None, None)
            timed = durations(columns.ns[mine], columns.device_ns[mine], ns, count, folder.own.gpu is not None)
            rows.append(columns.step[mine])
            # Steps noted now and then, long after the windows, have only the CPU's time.
            times.append(np.where(np.isnan(timed) & (columns.ns[mine] > 0), columns.ns[mine], timed))
        x, y = np.concatenate(rows), np.concatenate(times)
        known = np.isfinite(y) & (x != first)
        order = np.argsort(x[known], kind="stable")
        if len(order):
            found.append((name, paint, x[known][order], y[known][order]))
    return found


def _of_recording(diagnosis: Diagnosis) -> list[Series]:
    recorded = diagnosis.steps
    if recorded is None or recorded.source == "none" or len(recorded.each_ns) < _FEWEST_STEPS:
        return []
    each = np.array(recorded.each_ns, np.float64)
    name, _, paint = _RECORDED
    return [(name, paint, np.arange(1, len(each) + 1), each)]


def _points(
    name: str, paint: Paint, x: np.ndarray, ns: np.ndarray, far: np.ndarray, limit: float, scale: float, unit: Unit
) -> dict[str, Any]:
    rows = outline(ns, _MOST_POINTS)
    trace = {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "legendgroup": name,
        "x": x[rows].tolist(),
        "y": (np.minimum(ns[rows], limit) / scale).tolist(),
        "marker": {"size": 7, "symbol": ["triangle-up" if over else "circle" for over in far[rows].tolist()]},
        "customdata": [duration(value) for value in ns[rows].tolist()],
        "hovertemplate": f"{unit} %{{x}}, {name}: %{{customdata}}<extra></extra>",
    }
    return painted(trace, {"marker.color": paint})


def _median(name: str, paint: Paint, x: np.ndarray, ns: np.ndarray, scale: float) -> dict[str, Any]:
    """A line at the median, over the range of its steps."""
    median = float(np.median(ns))
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": f"median {name}",
        "legendgroup": name,
        "showlegend": False,
        "x": [float(x[0]) - 0.5, float(x[-1]) + 0.5],
        "y": [median / scale] * 2,
        "line": {"width": 1.5},
        "hovertemplate": f"{name}: median {duration(median)}<extra></extra>",
    }
    return painted(line, {"line.color": paint})
