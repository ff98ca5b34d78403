"""GPU memory over time, stacked by what holds it, with the phases under it."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.memory.memory_report import UNUSED, Series
from gpuprof.report.charts.style import INK, figure, painted, still
from gpuprof.report.palette import OWNER_PAINTS, PHASE_PAINTS, Paint
from gpuprof.report.words import memory_words as words

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

SETUP = Paint("setup", "setup", "#94a3b8", "#7f8ea3")
"""Before the first step."""


def memory_owners(diagnosis: Diagnosis) -> Figure | None:
    """Memory of the GPU with the highest peak by owner, GiB over seconds; None where nothing recorded it."""
    devices = diagnosis.memory.devices if diagnosis.memory else ()
    if not devices or len(devices[0].series.event) < 2:
        return None
    device = devices[0]
    series = device.series
    x = list(series.event if series.seconds is None else series.seconds)
    owners = [owner for owner in OWNER_PAINTS if owner in series.owners]
    traces = [_area(owner, x, series.owners[owner]) for owner in owners]
    if series.reserved_bytes is not None:
        line = _line(words.NAMES[UNUSED].split(" (")[0], x, series.reserved_bytes)
        traces.append(painted(line | {"name": "reserved"}, {"line.color": INK}))
    traces += _phases(series, x)
    unit = "event of the history" if series.seconds is None else "seconds since the first event"
    return figure(
        traces,
        {
            "hovermode": "closest",
            "barmode": "overlay",
            "xaxis": {"title": {"text": unit}, "showgrid": False, "anchor": "y2"},
            "yaxis": still({"title": {"text": "GiB"}, "rangemode": "tozero", "domain": [0.12, 1]}),
            "yaxis2": still({"domain": [0, 0.06], "showticklabels": False, "showgrid": False, "ticks": ""}),
        },
        title="Memory over time, by owner",
        note=f"{words.headline(device, 'Peak')}, {words.moment(device)}. Drag to zoom, double-click to "
        "see all; the strip below shows the phases.",
        legend="above",
        parts=[{"kind": "owner", "key": owner, "name": words.NAMES[owner]} for owner in owners],
        height=380,
    )


def _area(owner: str, x: list[float], values: tuple[int, ...]) -> dict[str, Any]:
    paint = OWNER_PAINTS[owner]
    area = {
        "type": "scatter",
        "mode": "lines",
        "name": paint.label,
        "x": x,
        "y": [value / 2**30 for value in values],
        "stackgroup": "owners",
        "line": {"width": 0, "shape": "hv"},
        "hovertemplate": f"{paint.label} %{{y:.2f}} GiB<extra></extra>",
    }
    return painted(area, {"fillcolor": paint, "line.color": paint})


def _line(name: str, x: list[float], values: tuple[int, ...]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": [value / 2**30 for value in values],
        "line": {"width": 1.4, "dash": "dash", "shape": "hv"},
        "hovertemplate": "reserved %{y:.2f} GiB<extra></extra>",
    }


def _phases(series: Series, x: list[float]) -> list[dict[str, Any]]:
    """A strip of bars, one trace a phase: it zooms with the areas above."""
    spans: dict[str, tuple[list[float], list[float]]] = {}
    for phase, rows in groupby(range(len(x)), key=lambda row: series.phase[row]):
        kept = list(rows)
        end = x[min(kept[-1] + 1, len(x) - 1)]
        base, width = spans.setdefault(phase, ([], []))
        base.append(x[kept[0]])
        width.append(end - x[kept[0]])
    traces = []
    for phase, (base, width) in spans.items():
        paint = PHASE_PAINTS.get(phase, SETUP)
        bar = {
            "type": "bar",
            "orientation": "h",
            "name": paint.label,
            "y": ["phase"] * len(base),
            "x": width,
            "base": base,
            "width": 0.9,
            "yaxis": "y2",
            "hovertemplate": f"{paint.label}<extra></extra>",
        }
        traces.append(painted(bar, {"marker.color": paint}))
    return traces
