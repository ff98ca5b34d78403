"""Matrix work against the GPU's ceilings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.costs.ceilings import Ceilings
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.charts.groups import (
    KernelGroup,
    diameters,
    hover,
    kernel_groups,
    known_roofline,
    largest,
    left_out,
    modelled_rows,
    possible,
)
from gpuprof.report.charts.style import QUIET, figure, painted
from gpuprof.report.numbers import share
from gpuprof.report.palette import CATEGORY_PAINTS, Paint
from gpuprof.units import Convention, Share

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_TENSOR = ("tf32", "bf16", "fp16", "fp8", "int8", "fp4")
"""Formats computed by tensor cores; the others have their own ceilings."""
_HOLLOW = "circle-open"
_LABEL_SHARE: Convention[Share] = 0.48
_NARROW_LABEL_SHARE: Convention[Share] = 0.5
"""Share of the width that the label of a ceiling takes, in a wide and in a narrow chart."""
_ALONG: Convention[Share] = 0.75
_NARROW_ALONG: Convention[Share] = 0.72
"""Position of the diagonal's label, as a share of the way up to the lowest ceiling, so that it touches no other
label."""

LEFT = {"xanchor": "right", "yanchor": "bottom", "xshift": -6, "yshift": -6}
"""Placement of a ceiling's label relative to its point."""


def roofline(diagnosis: Diagnosis) -> Figure | None:
    """Matmuls and attention: FLOP/s over FLOP per byte, under the ceilings of the GPU.

    None where the GPU's ceilings or the kernels' FLOPs are not known. Kernels that do none are in `bandwidth`.
    """
    known = known_roofline(diagnosis)
    if known is None:
        return None
    timeline, roof = known
    rows = modelled_rows(timeline, roof)
    rows = rows[(roof.work.flops[rows] > 0) & (roof.work.bytes[rows] > 0)]
    groups, beyond = possible(kernel_groups(timeline, roof, rows), roof.ceilings)
    if not groups:
        return None
    steps = len(timeline.steps.start_ns)
    chosen = largest(groups)
    traces = points(
        chosen,
        [group.flops / group.bytes for group in chosen],
        [group.flops_per_s for group in chosen],
        [
            [
                *hover(group, steps, diagnosis.unit),
                f"{si(group.flops_per_s)}FLOP/s, {group.flops / group.bytes:.3g} FLOP per byte",
            ]
            for group in chosen
        ],
    )  # fmt: skip
    x_range, y_range = _ranges(chosen, roof.ceilings)
    lines, labels = _ceilings(chosen, roof.ceilings, x_range, y_range)
    total = diagnosis.kernels.total_ns if diagnosis.kernels else 0
    of = sum(group.ns for group in groups)
    return figure(
        [*lines, *traces],
        {
            "xaxis": log_axis("FLOP per byte of memory traffic", x_range),
            "yaxis": log_axis("FLOP/s", y_range),
            "annotations": labels,
        },
        title="Roofline of matrix work",
        note=f"{share(of, total)} of the GPU's time. A point is a kernel under one op, its area the kernel's time."
        + left_out(chosen, groups)
        + beyond,
        legend="right",
        height=400,
        narrow=_narrow(chosen, roof.ceilings, y_range),
    )


def _narrow(groups: list[KernelGroup], limits: Ceilings, y_range: tuple[float, float]) -> dict[str, Any]:
    """For a narrow window: smaller labels, and the room that they need left of the kernels."""
    x_range, _ = _ranges(groups, limits, _NARROW_LABEL_SHARE)
    _, labels = _ceilings(groups, limits, x_range, y_range, _NARROW_ALONG)
    patch: dict[str, Any] = {"xaxis.range": [math.log10(end) for end in x_range], "xaxis.dtick": 2}
    for i, one in enumerate(labels):
        patch |= {f"annotations.{i}.x": one["x"], f"annotations.{i}.y": one["y"], f"annotations.{i}.font.size": 10}
    return patch


def points(groups: list[KernelGroup], x: list[float], y: list[float], words: list[list[str]]) -> list[dict[str, Any]]:
    """One trace per category, so that the legend names it; latency-bound kernels are hollow."""
    sizes = diameters(groups)
    traces = []
    template = "<br>".join(f"%{{customdata[{i}]}}" for i in range(len(words[0]))) + "<extra></extra>"
    for key, paint in CATEGORY_PAINTS.items():
        mine = [i for i, group in enumerate(groups) if group.group == key]
        if not mine:
            continue
        trace = {
            "type": "scatter",
            "mode": "markers",
            "legendgroup": key,
            "showlegend": False,
            "x": [x[i] for i in mine],
            "y": [y[i] for i in mine],
            "customdata": [words[i] for i in mine],
            "hovertemplate": template,
            "cliponaxis": False,
            "marker": {
                "size": [sizes[i] for i in mine],
                "symbol": [_HOLLOW if groups[i].bound == "latency" else "circle" for i in mine],
                "opacity": 0.8,
                "line": {"width": [2 if groups[i].bound == "latency" else 0 for i in mine]},
            },
        }
        traces.append(painted(trace, {"marker.color": paint}))
        traces.append(_legend_entry(paint.label, paint, "circle", key))
    if any(group.bound == "latency" for group in groups):
        traces.append(_legend_entry("hollow: latency-bound", QUIET, _HOLLOW, "hollow"))
    return traces


def _legend_entry(name: str, paint: Paint, symbol: str, group: str) -> dict[str, Any]:
    """A trace without points, for the legend: plotly would show the symbol of the first point, which may be hollow."""
    entry = {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "legendgroup": group,
        "x": [None],
        "y": [None],
        "marker": {"size": 10, "symbol": symbol, "line": {"width": 2 if symbol == _HOLLOW else 0}},
    }
    return painted(entry, {"marker.color": paint})


def log_axis(title: str, ends: tuple[float, float]) -> dict[str, Any]:
    """A logarithmic axis between these values, labelled 1, 10, 100, 1k."""
    return {
        "type": "log",
        "title": {"text": title},
        "range": [math.log10(ends[0]), math.log10(ends[1])],
        "dtick": 1,
        "tickformat": "~s",
    }


def ceiling(x: list[float], y: list[float], dash: str = "solid") -> dict[str, Any]:
    """The line of a ceiling."""
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"width": 1.5, "dash": dash},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return painted(line, {"line.color": QUIET})


def label(words: str, x: float, y: float, **where: Any) -> dict[str, Any]:
    """Words next to a line, at a point of two logarithmic axes."""
    return {"text": words, "x": math.log10(x), "y": math.log10(y), "showarrow": False, "font": {"size": 12}, **where}


def _ranges(
    groups: list[KernelGroup], limits: Ceilings, label: float = _LABEL_SHARE
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ends of both axes: all points, the ridge of every ceiling that is drawn, and some room.

    label: the share of the width that a label takes."""
    rates = [rate for _, rate in _rates(groups, limits)]
    x = [group.flops / group.bytes for group in groups] + [rate / limits.memory_bytes_per_s for rate in rates]
    y = [group.flops_per_s for group in groups] + rates
    low, high = min(x) / 3, max(x) * 4
    if rates:
        # Labels stand left of where a ceiling meets the diagonal, where no kernel can be: they need the room.
        ridge = min(rates) / limits.memory_bytes_per_s
        low = min(low, (ridge / high**label) ** (1 / (1 - label)))
    return (low, high), (min(y) / 3, max(y) * 2.5)


def _rates(groups: list[KernelGroup], limits: Ceilings) -> list[tuple[str, float]]:
    """Formats in use with their ceilings, grouped by ceiling: `bf16, fp16 tensor` → FLOP/s."""
    used = {group.dtype for group in groups}
    by_rate: dict[float, list[str]] = {}
    for dtype, rate in limits.flops.items():
        if dtype in used:
            by_rate.setdefault(rate, []).append(dtype)
    named = []
    for rate, dtypes in sorted(by_rate.items()):
        tensor = " tensor" if any(dtype in _TENSOR for dtype in dtypes) else ""
        named.append((", ".join(dtypes) + tensor, rate))
    return named


def _ceilings(
    groups: list[KernelGroup],
    limits: Ceilings,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    along: float = _ALONG,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Lines and their labels: bandwidth as the diagonal, a horizontal for each format in use."""
    bandwidth = limits.memory_bytes_per_s
    rates = _rates(groups, limits)
    top = max((rate for _, rate in rates), default=y_range[1])
    low = max(x_range[0], y_range[0] / bandwidth)
    ridge = top / bandwidth
    lines = [ceiling([low, ridge], [low * bandwidth, top])]
    first = min((rate for _, rate in rates), default=top) / bandwidth
    at = low * (first / low) ** along
    labels = [label(f"memory {si(bandwidth)}B/s", at, at * bandwidth, **LEFT)]
    for words, rate in rates:
        lines.append(ceiling([rate / bandwidth, x_range[1]], [rate, rate]))
        labels.append(label(f"{words} {si(rate)}FLOP/s", rate / bandwidth, rate, **LEFT))
    return lines, labels


def si(value: float) -> str:
    """`796 T`, `4.3 T`, `50.8 T`: a rate without its unit."""
    for scale, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= scale * (0.9995 if scale != 1e15 else 9.995):
            return f"{float(np.format_float_positional(value / scale, precision=3, fractional=False)):g} {unit}"
    return f"{value:.3g} "
