"""How much shorter the step gets with each resource twice as fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report import labels
from gpuprof.report.charts.style import figure, names_axis, painted, still
from gpuprof.report.palette import SERIES_PAINTS
from gpuprof.report.words.fixes import PARTS, RESOURCES
from gpuprof.units import Convention, Percent, Px, WholePercent

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_ROW_PX: Convention[Px] = 28
_LEAST_PERCENT: Convention[Percent] = 0.5
"""A resource that shortens the step by less than this percentage has no row."""
_NUMBER_PERCENT: Convention[WholePercent] = 40
"""From this percentage on a bar has room for its number."""


def sensitivities(diagnosis: Diagnosis) -> Figure | None:
    """By how many percent the step shrinks with each resource twice as fast; None where it could not be replayed, or
    nothing alone would shorten it."""
    found = diagnosis.sensitivities
    if found is None:
        return None
    known = {name: getattr(found, name) for name in RESOURCES if getattr(found, name) is not None}
    if all(name in known for name in PARTS):
        del known["device"]  # its parts say more
    order = [name for name in sorted(known, key=lambda name: -known[name]) if 50 * known[name] >= _LEAST_PERCENT]
    if not order:
        return None
    percent = [50 * known[name] for name in order]
    bar = {
        "type": "bar",
        "orientation": "h",
        "y": [labels.RESOURCES[name] for name in order],
        "x": percent,
        "text": [f"−{value:.0f} %" for value in percent],
        # Next to a long bar a phone has no room.
        "textposition": ["inside" if value >= _NUMBER_PERCENT else "outside" for value in percent],
        "insidetextanchor": "end",
        "cliponaxis": False,
        "hovertemplate": f"%{{y}} twice as fast: {diagnosis.unit} %{{x:.1f}} % shorter<extra></extra>",
    }
    return figure(
        [painted(bar, {"marker.color": SERIES_PAINTS[2]})],
        {
            "bargap": 0.35,
            "xaxis": still({"title": {"text": f"{diagnosis.unit} shorter by, %"}, "range": [0, 60], "dtick": 10}),
            "yaxis": names_axis(),
        },
        title=f"What the {diagnosis.unit} depends on",
        note=f"The {diagnosis.unit} replayed with one resource twice as fast. "
        + ("What is not listed changes nothing." if len(order) < len(known) else "At 50 % nothing else matters."),
        height=64 + _ROW_PX * len(order),
        narrow={"xaxis.dtick": 20},
    )
