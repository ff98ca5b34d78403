"""What the GPU does in each part of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.charts.style import figure, ink_on, names_axis, painted, still
from gpuprof.report.numbers import duration, share
from gpuprof.report.palette import PHASE_PAINTS, WORK_PAINTS
from gpuprof.units import Convention, Px

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_ROW_PX: Convention[Px] = 34


def phases(diagnosis: Diagnosis) -> Figure | None:
    """GPU busy and idle time per phase, ms a step as recorded; None if no phase is known."""
    found, steps = [phase for phase in diagnosis.phases if phase.ns], diagnosis.steps
    if not found or steps is None or not steps.count:
        return None
    labels = [PHASE_PAINTS[phase.phase].label for phase in found]
    total = sum(phase.ns for phase in found)
    traces = []
    for key, name, parts in (
        ("compute", "GPU busy", [phase.busy_ns for phase in found]),
        ("idle", "GPU idle", [phase.idle_ns for phase in found]),
    ):
        each = [ns / steps.count for ns in parts]
        bar = {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": labels,
            "x": [ns / 1e6 for ns in each],
            "text": [duration(ns) if 12 * ns * steps.count >= total else "" for ns in each],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "constraintext": "none",
            "customdata": [
                [duration(ns), share(part, phase.ns)] for ns, part, phase in zip(each, parts, found, strict=True)
            ],
            "hovertemplate": f"%{{y}}: {name} %{{customdata[0]}} {diagnosis.unit.a}<br>%{{customdata[1]}} of"
            " it<extra></extra>",
        }
        traces.append(
            painted(bar, {"marker.color": WORK_PAINTS[key], "insidetextfont.color": ink_on(WORK_PAINTS[key])})
        )
    unit = f"ms {diagnosis.unit.a}" if steps.source != "none" else "ms"
    return figure(
        traces,
        {
            "barmode": "stack",
            "bargap": 0.3,
            "xaxis": still({"title": {"text": unit}, "rangemode": "tozero"}),
            "yaxis": names_axis(),
        },
        title=f"Phases of the {diagnosis.unit}",
        note="As recorded, with the profiler's own cost in it.",
        legend="above",
        height=88 + _ROW_PX * len(found),
    )
