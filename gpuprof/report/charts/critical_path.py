"""The critical path of a step across ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.ranks.summary import OnPath
from gpuprof.report.charts.style import figure, names_axis, painted, still
from gpuprof.report.numbers import duration, share
from gpuprof.report.palette import PHASE_PAINTS
from gpuprof.units import Convention, Px, Rows

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_ROW_PX: Convention[Px] = 22
_MOST_ROWS: Convention[Rows] = 40


def critical_path(diagnosis: Diagnosis) -> Figure | None:
    """Ranks as rows, in order of stage and rank, with their parts of the usual step's critical path; None unless ranks
    were diagnosed together. Of many ranks, those with the largest parts."""
    job = diagnosis.job
    if job is None or not job.critical_path:
        return None
    total: dict[int, int] = {}
    for part in job.critical_path:
        total[part.rank] = total.get(part.rank, 0) + part.ns
    shown = sorted(total, key=lambda rank: -total[rank])[:_MOST_ROWS]
    stage = {one.rank: one.stage for one in job.members}
    whole = sum(total.values())

    def row(rank: int) -> str:
        return f"rank {rank}, stage {stage.get(rank, 0)}" if job.stages > 1 else f"rank {rank}"

    order = sorted(shown, key=lambda rank: (stage.get(rank, 0), rank))
    kinds = [kind for kind in PHASE_PAINTS if any(p.work == kind and p.rank in shown for p in job.critical_path)]
    traces = [
        _bars(kind, [p for p in job.critical_path if p.work == kind and p.rank in shown], row, whole) for kind in kinds
    ]
    left = len(total) - len(shown)
    return figure(
        traces,
        {
            "barmode": "overlay",
            "bargap": 0.25,
            "xaxis": still({"title": {"text": f"ms of the {diagnosis.unit}"}, "rangemode": "tozero"}),
            "yaxis": names_axis(categoryorder="array", categoryarray=[row(rank) for rank in order]),
        },
        title="Critical path across ranks",
        note=f"What would have to be shorter for the {diagnosis.unit} to be shorter, without the profiler's cost."
        " Communication:"
        " moving data once all ranks have arrived." + (f" {left} ranks with less of it are left out." if left else ""),
        legend="above",
        height=104 + _ROW_PX * len(shown),
        parts=[{"name": PHASE_PAINTS[kind].label, "key": kind, "kind": "phase"} for kind in kinds],
    )


def _bars(kind: str, parts: list[OnPath], row: Callable[[int], str], whole: int) -> dict[str, Any]:
    name = PHASE_PAINTS[kind].label
    return painted(
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": [row(part.rank) for part in parts],
            "base": [part.start_ns / 1e6 for part in parts],
            "x": [part.ns / 1e6 for part in parts],
            "customdata": [[duration(part.ns), share(part.ns, whole)] for part in parts],
            "hovertemplate": f"%{{y}}: {name} %{{customdata[0]}}, %{{customdata[1]}}<extra></extra>",
        },
        {"marker.color": PHASE_PAINTS[kind]},
    )
