"""Ranks × steps: which rank arrived last, and which ones waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.ranks.summary import Member
from gpuprof.report.charts.style import figure, names_axis, painted, still
from gpuprof.report.numbers import duration
from gpuprof.report.palette import CAUSE_PAINTS, SERIES_PAINTS
from gpuprof.timeline.unit import Unit
from gpuprof.units import Convention, Px, Rows, Share, Steps

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_ROW_PX: Convention[Px] = 18
_CELL_PX: Convention[Px] = 13
_MOST_ROWS: Convention[Rows] = 40
_MOST_STEPS: Convention[Steps] = 60
_FAINTEST: Convention[Share] = 0.06
"""Opacity of a cell with next to nothing in it; the fullest has 1."""


def rank_steps(diagnosis: Diagnosis) -> Figure | None:
    """For each rank and step how long the others waited for it, and how long it waited; None unless ranks were
    diagnosed together over two steps or more. Of many ranks those with the longest waits are shown, of many steps the
    first."""
    job = diagnosis.job
    if job is None or not job.members or job.steps < 2:
        return None
    if not any(max(one.waited_ns, default=0) for one in job.members):
        return None
    members = _chosen(job.members)
    steps = min(job.steps, _MOST_STEPS)
    most = max(max((*one.late_ns[:steps], *one.waited_ns[:steps])) for one in members)
    traces = [
        _cells(
            "the others wait for it", CAUSE_PAINTS["communication"], members, "late_ns", steps, most, diagnosis.unit
        ),
        _cells("waits for others", SERIES_PAINTS[2], members, "waited_ns", steps, most, diagnosis.unit),
    ]
    left = len(job.members) - len(members)
    more = f" {left} ranks with less of both are left out." if left else ""
    return figure(
        traces,
        {
            "xaxis": still(
                {"title": {"text": diagnosis.unit}, "dtick": max(steps // 20, 1), "range": [-0.5, steps - 0.5]}
            ),
            "yaxis": names_axis(categoryorder="array", categoryarray=[f"rank {one.rank}" for one in members]),
        },
        title=f"Ranks and {diagnosis.unit}s",
        note=f"The stronger the colour, the longer the wait: up to {duration(most)}. Replayed without the profiler's"
        f" cost.{more} To see several ranks on one timeline: gpuprof view PATH --ranks 0,1",
        legend="above",
        height=104 + _ROW_PX * len(members),
    )


def _chosen(members: tuple[Member, ...]) -> list[Member]:
    """In order of rank; of many, those that others waited for most, and those that waited most."""
    if len(members) <= _MOST_ROWS:
        return sorted(members, key=lambda one: one.rank)
    late, waited = (
        sorted(range(len(members)), key=lambda i: -max(getattr(members[i], name), default=0))
        for name in ("late_ns", "waited_ns")
    )
    kept = {*late[: _MOST_ROWS // 2]}
    kept.update([i for i in waited if i not in kept][: _MOST_ROWS - len(kept)])
    return sorted((members[i] for i in kept), key=lambda one: one.rank)


def _cells(
    name: str, paint: Any, members: list[Member], column: str, steps: int, most: int, unit: Unit
) -> dict[str, Any]:
    """One square per rank and step; its opacity is its share of the longest wait."""
    cells = [
        (step, one, ns)
        for one in members
        for step, ns in enumerate(getattr(one, column)[:steps])
        if ns > _FAINTEST / 2 * most
    ]
    return painted(
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [step for step, _, _ in cells],
            "y": [f"rank {one.rank}" for _, one, _ in cells],
            "customdata": [[duration(ns), f"stage {one.stage} {one.host}".strip()] for _, one, ns in cells],
            "marker": {
                "symbol": "square",
                "size": _CELL_PX,
                "opacity": [round(max(ns / most, _FAINTEST), 3) for _, _, ns in cells],
            },
            "hovertemplate": f"%{{y}}, {unit} %{{x}}: {name} %{{customdata[0]}}<br>%{{customdata[1]}}<extra></extra>",
        },
        {"marker.color": paint},
    )
