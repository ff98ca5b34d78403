"""The GPUs' power, clock, temperature and utilisation over the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.charts.downsample import outline
from gpuprof.report.charts.style import QUIET, figure, painted, text
from gpuprof.report.palette import SERIES_PAINTS
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.tracefile.run_folder.telemetry import TelemetryColumns
from gpuprof.tracefile.trace import ABSENT
from gpuprof.units import Convention, Points, Px, Samples, Share

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_PANELS = (
    ("power_w", "W", "power"),
    ("sm_mhz", "MHz", "clock"),
    ("temperature_c", "°C", "temperature"),
    ("utilization", "%", "utilisation"),
)
_PANEL_PX: Convention[Px] = 104
_SPACE_SHARE: Convention[Share] = 0.06
_MOST_POINTS: Convention[Points] = 600
"""Points per line: more cannot be distinguished in the chart's width."""
_SHADE, _DOTTED = "rgba(128,128,128,0.2)", "rgba(128,128,128,0.9)"
_FEWEST_SAMPLES: Convention[Samples] = 3
_REASONS = {
    "sw_power_cap": "the power limit",
    "hw_slowdown": "a hardware slowdown",
    "sw_thermal": "temperature",
    "hw_thermal": "temperature (hardware slowdown)",
    "hw_power_brake": "the power brake",
    "board_limit": "the board's limit",
    "reliability": "the voltage limit",
}
"""Throttle reasons as `gpuprof trace` samples them → their names for readers."""
_NOT_HELD = ("idle", "applications_clocks", "display_clock", "sync_boost")
"""Parts of the names of reasons that are not throttling: the GPU is idle, or a user has set the clocks."""


def telemetry(diagnosis: Diagnosis) -> Figure | None:
    """Power, clock, temperature and utilisation of each GPU over the run; None where it was not sampled."""
    folder = diagnosis.folder
    if folder is None:
        return None
    found = folder.telemetry
    panels = [panel for panel in _PANELS if np.count_nonzero(np.isfinite(getattr(found, panel[0]))) >= _FEWEST_SAMPLES]
    if not panels:
        return None
    start, limited = int(found.unix_ns.min()), bool(np.isfinite(found.limit_w).any())
    gpus = np.unique(found.gpu[found.gpu >= 0]).tolist() or [-1]
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"shapes": [], "annotations": [], "hovermode": "x unified"}
    height = (1 - _SPACE_SHARE * (len(panels) - 1)) / len(panels)
    for row, (column, unit, title) in enumerate(panels):
        suffix = "" if row == 0 else str(row + 1)
        bottom = 1 - (row + 1) * height - row * _SPACE_SHARE
        scale = _scale(column, found)
        layout[f"yaxis{suffix}"] = {
            "domain": [max(bottom, 0), bottom + height],
            "title": {"text": f"{title}<br>{unit}", "standoff": 6},
            "rangemode": "tozero",
            "nticks": 4,
            **({"range": [0, 105]} if column == "utilization" else {}),
        }
        for number, gpu in enumerate(gpus):
            rows = np.flatnonzero((found.gpu == gpu) & np.isfinite(getattr(found, column)))
            rows = rows[np.argsort(found.unix_ns[rows], kind="stable")]
            if len(rows):
                traces.append(_line(found, column, scale, rows, start, number, gpu, suffix, unit, row == 0))
        if column == "power_w" and limited:
            traces.append(_limit(found, start))
    layout["xaxis"] = {
        "title": {"text": "seconds of the run"},
        "anchor": "y" if len(panels) == 1 else f"y{len(panels)}",
        "showgrid": False,
        "range": [0, (int(found.unix_ns.max()) - start) / 1e9],
    }
    throttled, reasons = _throttled(folder)
    layout["shapes"] += [_shape(low, high, start) for low, high in throttled]
    notes = ["Dashed: the power limit."] if limited and panels[0][0] == "power_w" else []
    recorded = _recorded(folder)
    if recorded is not None:
        layout["shapes"] += [_border(at, start) for at in recorded]
        notes.append(f"Between the dotted lines: the recorded {diagnosis.unit}s.")
    if throttled:
        notes.append(f"Shaded: the clock is held back by {reasons}.")
    return figure(
        traces,
        layout,
        title="The GPU over the run" if len(gpus) == 1 else "The GPUs over the run",
        note=" ".join(notes),
        legend="above" if len(gpus) > 1 else "none",
        height=64 + _PANEL_PX * len(panels),
    )


def _scale(column: str, found: TelemetryColumns) -> float:
    """Utilisation is sampled as a share or in percent, and shown in percent."""
    return 100.0 if column == "utilization" and np.nanmax(found.utilization) <= 1 else 1.0


def _line(
    found: TelemetryColumns,
    column: str,
    scale: float,
    rows: np.ndarray,
    start_ns: int,
    number: int,
    gpu: int,
    suffix: str,
    unit: str,
    named: bool,
) -> dict[str, Any]:
    values = getattr(found, column) * scale
    rows = rows[outline(values[rows], _MOST_POINTS)]
    name = f"GPU {gpu}" if gpu >= 0 else "GPU"
    trace = {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "legendgroup": name,
        "showlegend": named,
        "x": ((found.unix_ns[rows] - start_ns) / 1e9).tolist(),
        "y": values[rows].tolist(),
        "xaxis": "x",
        "yaxis": f"y{suffix}",
        "line": {"width": 1.5},
        "hovertemplate": f"{name} %{{y:.0f}} {unit}<extra></extra>",
    }
    return painted(trace, {"line.color": SERIES_PAINTS[number % len(SERIES_PAINTS)]})


def _limit(found: TelemetryColumns, start_ns: int) -> dict[str, Any]:
    """The highest power limit of the GPUs over time."""
    times, inverse = np.unique(found.unix_ns[np.isfinite(found.limit_w)], return_inverse=True)
    limit = np.full(len(times), -np.inf)
    np.maximum.at(limit, inverse.ravel(), found.limit_w[np.isfinite(found.limit_w)])
    changes = np.unique(np.concatenate([[0], np.flatnonzero(np.diff(limit)) + 1, [len(limit) - 1]]))
    trace = {
        "type": "scatter",
        "mode": "lines",
        "name": "limit",
        "x": ((times[changes] - start_ns) / 1e9).tolist(),
        "y": limit[changes].tolist(),
        "line": {"width": 1.5, "dash": "dash", "shape": "hv"},
        "showlegend": False,
        "hovertemplate": "limit %{y:.0f} W<extra></extra>",
    }
    return painted(trace, {"line.color": QUIET})


def _throttled(folder: RunFolder) -> tuple[list[tuple[int, int]], str]:
    """Stretches [unix ns] in which a GPU's clock was throttled, and the reasons."""
    found = folder.telemetry
    times, inverse = np.unique(found.unix_ns, return_inverse=True)
    bits = np.zeros(len(times), np.int64)
    held = 0
    for i, reason in enumerate(folder.throttle_reasons):
        if not any(name in reason.lower() for name in _NOT_HELD):
            held |= 1 << i
    np.bitwise_or.at(bits, inverse.ravel(), found.throttle & held)
    if not bits.any():
        return [], ""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (bits != 0).astype(np.int8), [0]])))
    # A sample stands for the time until the next one.
    ends = np.append(times, times[-1])
    stretches = [(int(times[a]), int(ends[b])) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    seen = int(np.bitwise_or.reduce(bits))
    named = [
        _REASONS.get(reason, text(reason.replace("_", " "), 40))
        for i, reason in enumerate(folder.throttle_reasons)
        if seen >> i & 1
    ]
    return stretches, ", ".join(named)


def _recorded(folder: RunFolder) -> tuple[int, int] | None:
    """Begin and end [unix ns] of the recorded steps; None where they are not known."""
    steps = folder.steps
    rows = steps.rows(folder.window, folder.rank)
    rows = rows[steps.unix_ns[rows] != ABSENT]
    if not len(rows):
        return None
    return int((steps.unix_ns[rows] - steps.ns[rows]).min()), int(steps.unix_ns[rows].max())


def _shape(low_ns: int, high_ns: int, start_ns: int) -> dict[str, Any]:
    """A stretch of time, over all panels."""
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": (low_ns - start_ns) / 1e9,
        "x1": (high_ns - start_ns) / 1e9,
        "y0": 0,
        "y1": 1,
        "fillcolor": _SHADE,
        "line": {"width": 0},
        "layer": "below",
    }


def _border(at_ns: int, start_ns: int) -> dict[str, Any]:
    """A moment, over all panels."""
    x = (at_ns - start_ns) / 1e9
    line = {"width": 1.5, "dash": "dot", "color": _DOTTED}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line}
