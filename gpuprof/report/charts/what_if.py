"""The predicted step with each fix."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Combined, Finding
from gpuprof.report.charts.style import QUIET, figure, names_axis, painted, text
from gpuprof.report.numbers import duration, duration_range
from gpuprof.report.palette import SERIES_PAINTS
from gpuprof.report.words.fixes import chance, now_ns, step_after
from gpuprof.timeline.unit import Unit
from gpuprof.units import Characters, Convention, Px
from gpuprof.value_range import Range

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Row = tuple[str, Finding | Combined]
"""(label of the row, its fix or combination)."""

_ROW_PX: Convention[Px] = 34
_NAME_WIDTH: Convention[Characters] = 48
"""Characters of a line of a fix's name."""
_LONGEST_NAME: Convention[Characters] = 80
_NARROW_ROW_PX: Convention[Px] = 46
_NARROW_NAME: Convention[Characters] = 18
_TITLE_ROOM: Convention[Characters] = 58
"""In a narrow window: height of a row, characters per line of its name, and characters that fit in a title."""


def what_if(diagnosis: Diagnosis) -> Figure | None:
    """The predicted step with each fix and its 80 % interval, against the current step; None without findings.
    For a fix that puts more work into a step, the time for the work of one current step is shown. What is worth trying
    comes last, as open circles.
    """
    now = now_ns(diagnosis)
    if not now or not (diagnosis.findings or diagnosis.worth_trying):
        return None
    sure = len(diagnosis.findings)
    numbered = [
        (f"{number}  {text(found.title, _LONGEST_NAME)}", found)
        for number, found in enumerate((*diagnosis.findings, *diagnosis.worth_trying), 1)
    ]
    rows: list[Row] = [*numbered[:sure]]
    if diagnosis.combined:
        rows.append((_together(diagnosis, diagnosis.combined), diagnosis.combined))
    tried = len(rows)
    rows += numbered[sure:]
    per_work = [(step_after(found, now), found.work) for _, found in rows]
    scale, unit = (1e9, "s") if now >= 2e9 else (1e6, "ms")
    farthest = max(max(step.high / work for step, work in per_work), now) / scale
    more = any(found.work != 1 for _, found in rows)
    per = f"{unit} for the work of {diagnosis.unit.a} now" if more else f"{unit} {diagnosis.unit.a}"
    return figure(
        [
            painted(_line(now / scale, len(rows)), {"line.color": QUIET}),
            painted(
                _points(per_work, scale, tried) | _said(rows, tried, now, diagnosis.unit),
                {"marker.color": SERIES_PAINTS[0], "error_x.color": SERIES_PAINTS[0]},
            ),
        ],
        {
            "xaxis": {
                "title": {"text": per},
                "range": [0, farthest * 1.04],
                "fixedrange": True,
            },
            "yaxis": names_axis(
                autorange=False,
                range=[len(rows) - 0.5, -0.5],
                tickvals=list(range(len(rows))),
                ticktext=[_in_lines(label + _more(found.work), _NAME_WIDTH) for label, found in rows],
                showgrid=True,
            ),
            "margin": {"l": 64, "r": 56, "t": 84, "b": 48},
            "annotations": _annotations(rows, now, now / scale, farthest),
        },
        title="What each fix would gain",
        note=_note(diagnosis.unit, more, open_circles=len(rows) > tried),
        height=96 + _ROW_PX * len(rows),
        narrow={
            "height": _TITLE_ROOM + 96 + _NARROW_ROW_PX * len(rows),
            "yaxis.ticktext": [_in_lines(label, _NARROW_NAME) for label, _ in rows],
            "yaxis.tickfont.size": 11,
            "xaxis.nticks": 3,
        },
    )


def _in_lines(label: str, width: int) -> str:
    """A label in lines of at most `width` characters, broken between words."""
    return "<br>".join(textwrap.wrap(label, width))


def _points(per_work: list[tuple[Range, float]], scale: float, tried: int) -> dict[str, Any]:
    """The step with each fix over its work, as points with intervals; the first `tried` are filled."""
    positions = list(range(len(per_work)))
    return {
        "type": "scatter",
        "mode": "markers",
        "cliponaxis": False,
        "x": [step.expected / work / scale for step, work in per_work],
        "y": positions,
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [(step.high - step.expected) / work / scale for step, work in per_work],
            "arrayminus": [(step.expected - step.low) / work / scale for step, work in per_work],
            "thickness": 2,
            "width": 5,
        },
        "marker": {"size": 10, "symbol": ["circle" if i < tried else "circle-open" for i in positions]},
    }


def _said(rows: list[Row], tried: int, now: float, unit: Unit) -> dict[str, Any]:
    """Hover texts of the points."""
    return {
        "customdata": [
            [
                label + (f", {chance(found)}" if i >= tried and isinstance(found, Finding) else ""),
                *_words(found, now, unit),
            ]
            for i, (label, found) in enumerate(rows)
        ],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
        "showlegend": False,
    }


def _line(place: float, rows: int) -> dict[str, Any]:
    """A line at the current step, across all rows."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [place, place],
        "y": [-0.5, rows - 0.5],
        "line": {"width": 1.5, "dash": "dash"},
        "hoverinfo": "skip",
    }


def _note(unit: Unit, more: bool, open_circles: bool) -> str:
    """What the chart shows. more: some fixes put more work into a step."""
    same_work = f", for the work of one {unit} now" if more else ""
    circles = " Open circles: worth trying, not sure to gain." if open_circles else ""
    return f"The expected {unit} and its 80 % interval{same_work}.{circles}"


def _annotations(rows: list[Row], now: float, place: float, farthest: float) -> list[dict[str, Any]]:
    """A label of the current step, at `place` of an axis that ends at `farthest`, and a column of speedups."""
    return [
        {
            "x": place, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False,
            "xanchor": "right" if 2 * place > farthest else "left",
            "text": f"now {duration(now)}", "font": {"size": 12},
        },
        {
            "x": 1.01, "xref": "paper", "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "bottom",
            "showarrow": False, "text": "speed", "font": {"size": 12},
        },
        *(
            {
                "x": 1.01, "xref": "paper", "xanchor": "left", "y": i, "showarrow": False,
                "text": f"<b>{_times(found.speedup.expected)}</b>", "font": {"size": 12},
            }
            for i, (_, found) in enumerate(rows)
        ),
    ]  # fmt: skip


def _together(diagnosis: Diagnosis, both: Combined) -> str:
    """`1 + 3 together`."""
    titles = [found.title for found in diagnosis.findings]
    known = sorted(titles.index(title) + 1 for title in both.titles if title in titles)
    others = [text(title, _NAME_WIDTH) for title in both.titles if title not in titles]
    return f"{' + '.join([*map(str, known), *others])}  together"


def _more(work: float) -> str:
    return "" if work == 1 else f" ({_times(work)} work)"


def _times(value: float) -> str:
    """`5.3×`, `16×`."""
    whole = value >= 9.95 or abs(value - round(value)) < 0.05
    return f"{value:.0f}×" if whole and value >= 1.5 else f"{value:.1f}×"


def _words(found: Finding | Combined, now: float, unit: Unit) -> tuple[str, str]:
    after = step_after(found, now)
    step = f"{unit} {duration(after.expected)} ({duration_range(after.low, after.high)})"
    if found.work != 1:
        step += f" with {_times(found.work)} the work"
    faster = f"training {found.speedup.expected:.2f}× as fast ({found.speedup.low:.2f}–{found.speedup.high:.2f}×)"
    return step, faster
