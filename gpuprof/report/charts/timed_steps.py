"""What each timed step waited for: a bar per step, and the mean and the usual step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.mean_step.timed_steps import USUAL, VARIATION, TimedSteps
from gpuprof.diagnosis.result.cpu_step import prepares_batches
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.charts.style import INK, figure, painted
from gpuprof.report.numbers import amount, duration, share
from gpuprof.report.palette import BUDGET_PAINTS
from gpuprof.timeline.unit import Unit
from gpuprof.units import Convention, Px, Ratio, Share, Steps

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_HEIGHT: Convention[Px] = 290
_LABELS_PX: Convention[Px] = 84
_FEWEST_STEPS: Convention[Steps] = 2
_CUT_RATIO: Convention[Ratio] = 12.0
_MOST_CUT: Convention[Share] = 0.1
"""Steps longer than _CUT_RATIO medians are cut at the top edge if they are fewer than a share _MOST_CUT of all: they
would flatten the others."""
_MOST_LABELLED: Convention[Steps] = 5
"""Steps cut at the edge that have their time written next to them."""
_LEAST_HOVERED: Convention[Share] = 0.005
"""Smallest share of a step for which a part is listed on hovering."""
_SAME_LENGTH: Convention[Share] = 0.15
"""Steps within this share of their median look alike."""
_EACH_TICK: Convention[Steps] = 10
_NARROW_EACH_TICK: Convention[Steps] = 5
"""Up to this many steps each has its number on the axis; the second in a narrow window."""
_IN_LEGEND: Convention[Share] = 0.02
"""A cause that takes less than this share of every step has no entry in the legend."""
_WORTH_SAYING: Convention[Share] = 0.03
"""Smallest share of the steps' time for which a cause is named in the note."""
_APART_PX: Convention[Px] = 17
_PLOT_PX: Convention[Px] = 190
"""Vertical distance that two labels need, and the approximate height of the plot."""


def timed_steps(diagnosis: Diagnosis) -> Figure | None:
    """Every step that was timed free-running, split by what it waited for; None where none were.

    `layout.meta.legend` lists the parts of the legend (name, key of BUDGET_PAINTS), for a page that writes it itself.
    """
    timed, budget = diagnosis.timed, diagnosis.budget
    if timed is None or budget is None or budget.source != "free" or len(timed.ns) < _FEWEST_STEPS or alike(diagnosis):
        return None
    once = {one.cause for one in budget.left_out}
    scale, unit = (1e9, "s") if float(np.median(timed.ns)) >= 2e9 else (1e6, "ms")
    top, far = _top(timed, budget)
    ends = [float(timed.number[0]) - 0.5, float(timed.number[-1]) + 0.5]
    parts = {key: ns for key, ns in timed.parts.items() if ns.any()}
    names = _names(diagnosis)
    traces = [_bars(key, names[key], ns, timed, scale, once=key in once) for key, ns in parts.items()]
    legend = [{"name": bar["name"], "key": key} for key, bar in zip(parts, traces, strict=True) if bar["showlegend"]]
    traces += [_line("usual", budget.usual_ns, ends, scale, "dot"), _line("mean", budget.mean_ns, ends, scale, "solid")]
    if far.any():
        traces.append(_cut(timed, far, top, scale))
    traces.append(_hover(timed, names, top, scale, diagnosis.unit))
    return figure(
        traces,
        {
            "barmode": "stack",
            "bargap": 0.18 if len(timed.ns) <= 60 else 0.1 if len(timed.ns) <= 120 else 0,
            "hovermode": "x",
            "xaxis": {"title": {"text": diagnosis.unit}, "showgrid": False, "range": ends, **_whole_ticks(timed)},
            "yaxis": {"title": {"text": f"{unit} {diagnosis.unit.a}"}, "range": [0, top / scale]},
            "annotations": _labels(budget, top, scale),
            "margin": {"r": _LABELS_PX},
        },
        title=f"Timed {diagnosis.unit}s: what each waited for",
        note=_note(timed, names, once, far, diagnosis.unit),
        legend="above",
        height=_HEIGHT,
        parts=legend,
        narrow={"xaxis.dtick": 2} if _NARROW_EACH_TICK < len(timed.ns) <= _EACH_TICK else None,
    )


def alike(diagnosis: Diagnosis) -> bool:
    """Whether a chart of the timed steps would be bars of one height and one part."""
    timed, budget = diagnosis.timed, diagnosis.budget
    if timed is None or budget is None or not len(timed.ns):
        return False
    causes = sum(int(ns.sum()) for key, ns in timed.parts.items() if key not in (USUAL, VARIATION))
    apart = np.abs(timed.ns - np.median(timed.ns)).max()
    return bool(apart <= _SAME_LENGTH * float(np.median(timed.ns)) and causes <= _LEAST_HOVERED * int(timed.ns.sum()))


def _whole_ticks(timed: TimedSteps) -> dict[str, Any]:
    return {"tickformat": "d", "tickangle": 0, **({"dtick": 1} if len(timed.ns) <= _EACH_TICK else {})}


def _top(timed: TimedSteps, budget: Budget) -> tuple[float, np.ndarray]:
    """(end of the axis [ns], mask of the steps that reach beyond it)."""
    far = timed.ns > _CUT_RATIO * float(np.median(timed.ns))
    if far.sum() > max(_MOST_CUT * len(far), 1):
        far = np.zeros(len(far), bool)
    longest = max(int(timed.ns[~far].max(initial=0)), budget.mean_ns, budget.usual_ns)
    return longest * (1.25 if far.any() else 1.06), far


def _bars(key: str, name: str, ns: np.ndarray, timed: TimedSteps, scale: float, *, once: bool) -> dict[str, Any]:
    """One part, of the steps that have it; the usual part, of all steps."""
    has = ns > 0 if key != USUAL else np.ones(len(ns), bool)
    paint = BUDGET_PAINTS.get(key, BUDGET_PAINTS[VARIATION])
    bar: dict[str, Any] = {
        "type": "bar",
        "name": name + (" (once)" if once else ""),
        "x": timed.number[has].tolist(),
        "y": (ns[has] / scale).tolist(),
        "marker": {"line": {"width": 0}},
        "hoverinfo": "skip",
        "showlegend": key in (USUAL, VARIATION) or bool((ns >= _IN_LEGEND * timed.ns).any()),
    }
    return painted(bar, {"marker.color": paint})


def _names(diagnosis: Diagnosis) -> dict[str, str]:
    """Labels of the parts of the timed steps."""
    keys = () if diagnosis.timed is None else diagnosis.timed.parts
    names = {key: BUDGET_PAINTS[key].label if key in BUDGET_PAINTS else key.replace("_", " ") for key in keys}
    if USUAL in names:
        names[USUAL] = f"usual {diagnosis.unit}"
    return names | ({"input": "preparing batches"} if "input" in names and prepares_batches(diagnosis.run) else {})


def _line(name: str, ns: int, ends: list[float], scale: float, dash: str) -> dict[str, Any]:
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": f"{name} {duration(ns)}",
        "showlegend": False,
        "x": ends,
        "y": [ns / scale] * 2,
        "line": {"width": 1.3, "dash": dash},
        "hoverinfo": "skip",
    }
    return painted(line, {"line.color": INK})


def _labels(budget: Budget, top: float, scale: float) -> list[dict[str, Any]]:
    """Labels of the two lines, right of their ends; pushed apart where they would overlap."""
    near = abs(budget.mean_ns - budget.usual_ns) / top * _PLOT_PX < _APART_PX
    above = budget.mean_ns >= budget.usual_ns
    return [
        {
            "text": f"{name} {duration(ns)}",
            "x": 1,
            "xref": "paper",
            "xanchor": "left",
            "xshift": 3,
            "y": ns / scale,
            "yanchor": ("bottom" if over else "top") if near else "middle",
            "showarrow": False,
            "font": {"size": 11},
        }
        for name, ns, over in (("mean", budget.mean_ns, above), ("usual", budget.usual_ns, not above))
    ]


def _cut(timed: TimedSteps, far: np.ndarray, top: float, scale: float) -> dict[str, Any]:
    """Marks of the steps that are longer than the axis."""
    x, labelled = timed.number[far], far.sum() <= _MOST_LABELLED
    middle = (int(timed.number[0]) + int(timed.number[-1])) / 2
    marks = {
        "type": "scatter",
        "mode": "markers+text" if labelled else "markers",
        "name": "longer than shown",
        "showlegend": False,
        "x": x.tolist(),
        "y": [0.94 * top / scale] * len(x),
        "marker": {"symbol": "triangle-up", "size": 9},
        "text": [f"  {duration(ns)}  " for ns in timed.ns[far].tolist()] if labelled else [],
        "textposition": ["middle left" if one > middle else "middle right" for one in x.tolist()],
        "textfont": {"size": 11},
        "hoverinfo": "skip",
    }
    return painted(marks, {"marker.color": INK, "textfont.color": INK})


def _hover(timed: TimedSteps, names: dict[str, str], top: float, scale: float, unit: Unit) -> dict[str, Any]:
    """Invisible points that carry the hover text of the steps."""
    points = {
        "type": "scatter",
        "mode": "markers",
        "name": f"{unit}s",
        "showlegend": False,
        "x": timed.number.tolist(),
        "y": (np.minimum(timed.ns, 0.98 * top) / scale).tolist(),
        "marker": {"opacity": 0, "size": 1},
        "customdata": [_told(timed, names, row, unit) for row in range(len(timed.ns))],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    return painted(points, {"marker.color": INK})


def _told(timed: TimedSteps, names: dict[str, str], row: int, unit: Unit) -> str:
    total = int(timed.ns[row])
    lines = [f"<b>{unit} {timed.number[row]:,}: {duration(total)}</b>"]
    for key, ns in timed.parts.items():
        if ns[row] > _LEAST_HOVERED * total:
            lines.append(f"{names[key]} {duration(int(ns[row]))}")
    return "<br>".join(lines)


def _note(timed: TimedSteps, names: dict[str, str], once: set[str], far: np.ndarray, unit: Unit) -> str:
    total = int(timed.ns.sum())
    times = {key: int(ns.sum()) for key, ns in timed.parts.items() if key not in (USUAL, VARIATION)}
    large = sorted((key for key, ns in times.items() if ns >= _WORTH_SAYING * total), key=lambda key: key in once)
    said = [f"{'once ' if key in once else ''}{names[key]} {share(times[key], total)}" for key in large[:2]]
    found = (
        f"Of their time, beyond the usual {unit}: {', '.join(said)}."
        if said
        else f"No measured cause makes {unit.a} noticeably longer than usual."
    )
    beyond = f"▲ {far.sum()} longer than shown." if far.any() else ""
    return " ".join(filter(None, (f"{amount(len(timed.ns), unit)} in a row, unprofiled.", found, beyond)))
