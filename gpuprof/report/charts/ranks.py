"""The ranks of a training side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.charts.style import figure, ink_on, names_axis, painted, still
from gpuprof.report.numbers import duration
from gpuprof.report.palette import CAUSE_PAINTS, SERIES_PAINTS
from gpuprof.units import Convention, Px, Rows

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_ROW_PX: Convention[Px] = 34
_MOST_ROWS: Convention[Rows] = 16
"""With more ranks than this the bars are vertical."""


def ranks(diagnosis: Diagnosis) -> Figure | None:
    """For each rank its own part of a step and its waiting for others; None unless ranks were diagnosed together."""
    found = sorted((r for r in diagnosis.ranks or () if r.pace_ns is not None), key=lambda rank: rank.rank)
    if not found:
        return None
    labels = [f"rank {rank.rank}" for rank in found]
    late = [f"last to arrive {100 * rank.late_share:.0f} %" if rank.late_share else "" for rank in found]
    upright = len(found) > _MOST_ROWS
    along, across = ("x", "y") if upright else ("y", "x")
    traces = []
    for name, paint, times in (
        ("by itself", SERIES_PAINTS[2], [rank.pace_ns or 0 for rank in found]),
        ("waiting for others", CAUSE_PAINTS["communication"], [rank.waiting_ns or 0 for rank in found]),
    ):
        bar: dict[str, Any] = {
            "type": "bar",
            "orientation": "v" if upright else "h",
            "name": name,
            along: labels,
            across: [ns / 1e6 for ns in times],
            "customdata": [[duration(ns), words] for ns, words in zip(times, late, strict=True)],
            "hovertemplate": f"%{{{along}}}: {name} %{{customdata[0]}}<br>%{{customdata[1]}}<extra></extra>",
        }
        if not upright:
            bar |= {
                "text": [duration(ns) if ns * 12 > max(times) else "" for ns in times],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
            }
        traces.append(painted(bar, {"marker.color": paint, "insidetextfont.color": ink_on(paint)}))
    values = still({"title": {"text": f"ms {diagnosis.unit.a}"}, "rangemode": "tozero"})
    names = names_axis(**({"autorange": True} if upright else {}))
    return figure(
        traces,
        {
            "barmode": "stack",
            "bargap": 0.3,
            "xaxis": names if upright else values,
            "yaxis": values if upright else names,
        },
        title="Ranks",
        note=f"The {diagnosis.unit} that each rank would take alone, and its waiting for the others. Without the"
        " profiler's cost.",
        legend="above",
        height=320 if upright else 88 + _ROW_PX * len(found),
    )
