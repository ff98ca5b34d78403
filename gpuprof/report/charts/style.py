"""The style of all charts, light and dark, and their JSON for a page.
A figure is made in its light colours and contains both themes, so that a page can switch without Python:
`layout.meta.light` and `layout.meta.dark` are what `Plotly.relayout` takes, `data[i].meta.light` and `.dark` what
`Plotly.restyle(…, [i])` takes. `layout.meta.title` and `layout.meta.note` describe what it shows.
"""

from __future__ import annotations

import base64
import copy
import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpuprof.report.names import shown
from gpuprof.report.palette import Paint, text_on
from gpuprof.units import Convention, Digits, Px

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Theme = Literal["light", "dark"]
Json = dict[str, Any]

CONFIG = {"displayModeBar": False, "displaylogo": False, "responsive": True, "showTips": False}
"""For `figure.show(config=CONFIG)` and `Plotly.newPlot(…, CONFIG)`: no buttons over the chart."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_FONT_PX: Convention[Px] = 13
_SMALL_PX: Convention[Px] = 12

_LIGHT = {"text": "#24292f", "quiet": "#59636e", "grid": "#e7e9ec", "axis": "#b6bcc4", "box": "#ffffff"}
_DARK = {"text": "#d8dde3", "quiet": "#9aa4af", "grid": "#2a3038", "axis": "#4a525c", "box": "#1f242b"}
_COLOURS = {"light": _LIGHT, "dark": _DARK}

QUIET = Paint("quiet", "", _LIGHT["quiet"], _DARK["quiet"])
"""Reference lines: ceilings, limits, the step before a change."""
INK = Paint("ink", "", _LIGHT["text"], _DARK["text"])
"""Lines and marks in the colour of text."""

_TITLE_PX: Convention[Px] = 58
LEGEND_PX: Convention[Px] = 30
"""Room above a chart for its title with the note, and for a legend in one row."""
_SIGNIFICANT_DIGITS: Convention[Digits] = 6


def text(name: str | None, width: int = 80) -> str:
    """A name from a trace for a figure, escaped: plotly interprets some tags, entities and $formulas$."""
    return plain(shown(name, width))


def plain(words: str) -> str:
    """Text escaped so that plotly sees no tag, entity or formula."""
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("$", "&#36;")):
        words = words.replace(char, entity)
    return words


def ink_on(paint: Paint) -> Paint:
    """Black or white, for words on fills of this paint."""
    return Paint(f"on {paint.key}", "", text_on(paint.light), text_on(paint.dark))


def painted(trace: Json, colours: dict[str, Paint]) -> Json:
    """The trace in the light colours, with both themes' colours in its meta. Keys are paths: `marker.color`."""
    themes = {
        "light": {path: paint.light for path, paint in colours.items()},
        "dark": {path: paint.dark for path, paint in colours.items()},
    }
    trace["meta"] = themes
    _apply(trace, themes["light"])
    return trace


def figure(
    traces: list[Json],
    layout: Json,
    *,
    title: str,
    note: str = "",
    legend: Literal["none", "above", "right"] = "none",
    height: int = 360,
    parts: list[dict[str, str]] | None = None,
    narrow: Json | None = None,
) -> Figure:
    """A figure in the common style.
    layout: its axes and everything particular to it; a margin only if it differs. title: what it shows; note: what the
    reader must know; both are our own text. height: pixels without the title. parts: legend entries for a page that
    writes its own legend, kept as `layout.meta.legend`. narrow: layout paths → values for narrow windows, kept as
    `layout.meta.narrow`; a legend on the right moves below by itself.
    """
    import plotly.graph_objects as go

    axes = [name for name in layout if name.startswith(("xaxis", "yaxis"))]
    themes = {theme: _theme(colours, axes) for theme, colours in _COLOURS.items()}
    whole: Json = {
        "template": {},
        "autosize": True,
        "height": height + _TITLE_PX,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": _FONT_PX},
        "margin": {"l": 64, "r": 16, "t": _TITLE_PX + (LEGEND_PX if legend == "above" else 8), "b": 48},
        "title": {
            "text": title,
            "font": {"size": 15, "weight": 600},
            "subtitle": {"text": note, "font": {"size": _SMALL_PX, "weight": 400}},
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"l": 4, "t": 10},
        },
        "showlegend": legend != "none",
        "hovermode": "closest",
        "hoverlabel": {"font": {"family": FONT, "size": _SMALL_PX}, "align": "left", "namelength": -1},
        "meta": {"title": title, "note": note, **({"legend": parts} if parts else {}), **themes},
    }
    if legend != "none":
        whole["legend"] = _legend(legend)
    below = _below(traces, whole["height"]) if legend == "right" else {}
    if narrow or below:
        whole["meta"]["narrow"] = {**below, **(narrow or {})}
    for name, value in layout.items():
        base = _axis() if name in axes else whole["margin"] if name == "margin" else {}
        whole[name] = _merged(base, value) if base else value
    _apply(whole, themes["light"])
    return go.Figure({"data": traces, "layout": whole})


def _below(traces: list[Json], height: int) -> Json:
    """A patch of the layout: the legend below the plot, two entries in a row, and room for it."""
    entries = sum(1 for trace in traces if trace.get("name") and trace.get("showlegend", True))
    room = 14 + 20 * ((entries + 1) // 2)
    return {
        "height": height + room,
        "margin.b": 56 + room,
        "legend.orientation": "h",
        "legend.x": 0,
        "legend.y": 0,
        "legend.yref": "container",
        "legend.yanchor": "bottom",
        "legend.xref": "container",
    }


def still(axis: Json) -> Json:
    """An axis that a stray drag does not zoom."""
    return {**axis, "fixedrange": True}


def names_axis(**more: Any) -> Json:
    """The axis of horizontal bars: names from top to bottom, no lines."""
    bare = {"showline": False, "ticks": "", "showgrid": False, "ticklabelstandoff": 6}
    return still({"autorange": "reversed", **bare, **more})


def _axis() -> Json:
    return {
        "zeroline": False,
        "showline": True,
        "ticks": "outside",
        "ticklen": 4,
        "gridwidth": 1,
        "tickfont": {"size": _SMALL_PX},
        "automargin": True,
        "title": {"font": {"size": _SMALL_PX}, "standoff": 8},
    }


def _merged(base: Json, more: Json) -> Json:
    """`base` updated with `more`, recursively."""
    both = dict(base)
    for key, value in more.items():
        both[key] = _merged(both[key], value) if isinstance(value, dict) and isinstance(both.get(key), dict) else value
    return both


def _legend(where: str) -> Json:
    font = {"size": _SMALL_PX}
    common = {
        "font": font,
        "bgcolor": "rgba(0,0,0,0)",
        "itemsizing": "constant",
        "tracegroupgap": 4,
        "traceorder": "normal",
    }
    if where == "right":
        return {
            **common,
            "x": 1.01,
            "xanchor": "left",
            "y": 1,
            "yanchor": "top",
        }
    return {**common, "orientation": "h", "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom"}


def _theme(colours: dict[str, str], axes: Iterable[str]) -> dict[str, str]:
    """A patch of the layout: path → colour."""
    patch = {
        "font.color": colours["text"],
        "title.font.color": colours["text"],
        "title.subtitle.font.color": colours["quiet"],
        "hoverlabel.bgcolor": colours["box"],
        "hoverlabel.bordercolor": colours["axis"],
        "hoverlabel.font.color": colours["text"],
    }
    for axis in axes:
        patch |= {
            f"{axis}.gridcolor": colours["grid"],
            f"{axis}.linecolor": colours["axis"],
            f"{axis}.tickcolor": colours["axis"],
            f"{axis}.tickfont.color": colours["quiet"],
            f"{axis}.title.font.color": colours["quiet"],
        }
    return patch


def _apply(target: Json, patch: dict[str, Any]) -> None:
    for path, value in patch.items():
        *above, last = path.split(".")
        place = target
        for key in above:
            place = place.setdefault(key, {})
        place[last] = value


def for_theme(figure: Figure, theme: Theme) -> Figure:
    """A copy of the figure in the colours of one theme."""
    import plotly.graph_objects as go

    content = copy.deepcopy(figure.to_plotly_json())
    _apply(content["layout"], content["layout"].get("meta", {}).get(theme, {}))
    for trace in content["data"]:
        _apply(trace, (trace.get("meta") or {}).get(theme, {}))
    return go.Figure(content)


def to_json(figure: Figure, *, titled: bool = False) -> str:
    """The figure as compact JSON that may stand inside a script element.

    titled: with its title; a page may write `layout.meta.title` and `.note` itself instead.
    Numbers have six significant digits; NaN and infinity become null.
    """
    content = figure.to_plotly_json()
    if not titled:
        layout = content["layout"] = copy.deepcopy(content["layout"])
        if "title" in layout:
            del layout["title"]
            layout["height"] = layout["height"] - _TITLE_PX
            layout["margin"]["t"] -= _TITLE_PX
            narrow = layout["meta"].get("narrow", {})
            narrow |= {"height": narrow["height"] - _TITLE_PX} if "height" in narrow else {}
            for theme in ("light", "dark"):
                for path in [path for path in layout["meta"][theme] if path.startswith("title.")]:
                    del layout["meta"][theme][path]
    written = json.dumps(_rounded(content), separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _rounded(value: Any) -> Any:
    """Anything in a figure as plain JSON."""
    if isinstance(value, dict):
        if value.keys() >= {"dtype", "bdata"}:  # plotly's encoding of an array
            return _rounded(np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"]))
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _rounded(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return number(value) if math.isfinite(value) else None
    return value


def number(value: float) -> float | int:
    """Six significant digits, whole numbers without a point."""
    short = float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
