"""Whether the idle time is in many short gaps or in a few long ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.idle.gaps import CAUSES
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.charts.recorded_columns import tables_of
from gpuprof.report.charts.style import figure, painted, still
from gpuprof.report.numbers import count, duration
from gpuprof.report.palette import CAUSE_PAINTS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_EDGES_NS = np.array([0, *(digit * 10**power for power in range(3, 9) for digit in (1, 2, 5)), 10**9])
"""Lengths at which bins begin; the last has no end."""


def gap_histogram(diagnosis: Diagnosis) -> Figure | None:
    """Idle ms a step by the length of the gap it is in, stacked by cause; None where no gap was recorded.

    A mean over the devices where there are several. The bars sum to `gaps.total_ns` over steps and devices.
    """
    tables = tables_of(diagnosis)
    if tables is None or not len(tables.columns.ns):
        return None
    columns = tables.columns
    shares = len(tables.timeline.steps.start_ns) * max(len(diagnosis.devices), 1)
    bins = np.searchsorted(_EDGES_NS, columns.ns, side="right") - 1
    low, high = int(bins.min()), int(bins.max())
    size = high - low + 1
    x = list(range(size))
    names = [_name(low + i) for i in x]
    traces = []
    for key, paint in CAUSE_PAINTS.items():
        ns = columns.by_cause[:, CAUSES.index(key)]
        total = np.bincount(bins - low, weights=ns, minlength=size) / shares
        if not total.any():
            continue
        counts = np.bincount((bins - low)[ns > 0], minlength=size) / shares
        bar = {
            "type": "bar",
            "name": paint.label,
            "x": x,
            "y": (total / 1e6).tolist(),
            "customdata": [
                [name, duration(each), count(float(number))]
                for name, each, number in zip(names, total.tolist(), counts, strict=True)
            ],
            "hovertemplate": f"{paint.label}: %{{customdata[1]}} {diagnosis.unit.a}"
            "<br>in %{customdata[2]} gaps of %{customdata[0]}<extra></extra>",
        }
        traces.append(painted(bar, {"marker.color": paint}))
    edges = [i for i in range(size + 1) if _is_decade(low + i)]
    gpu = " and GPU" if len(diagnosis.devices) > 1 else ""
    return figure(
        traces,
        {
            "barmode": "stack",
            "bargap": 0.08,
            "xaxis": still(
                {
                    "title": {"text": "length of the gap"},
                    "tickvals": [i - 0.5 for i in edges],
                    "ticktext": [duration(int(_EDGES_NS[low + i])).replace(".0", "") for i in edges],
                    "range": [-0.5, size - 0.5],
                }
            ),
            "yaxis": still({"title": {"text": f"idle ms {diagnosis.unit.a}{gpu}"}, "rangemode": "tozero"}),
        },
        title="Idle time by length of gap",
        note="Bar heights are time, not numbers of gaps. As recorded, with the profiler's own cost in it.",
        legend="right",
        height=320,
    )


def _is_decade(edge: int) -> bool:
    """Whether the edge of a bin is 1 µs, 10 µs, 100 µs …"""
    return edge < len(_EDGES_NS) and str(_EDGES_NS[edge]).startswith("1")


def _name(bin_: int) -> str:
    """Name of a bin, `2 to 5 µs`."""
    if bin_ == 0:
        return f"under {duration(int(_EDGES_NS[1]))}"
    if bin_ == len(_EDGES_NS) - 1:
        return f"over {duration(int(_EDGES_NS[-1]))}"
    low, high = (duration(int(_EDGES_NS[bin_ + i])).replace(".0", "") for i in (0, 1))
    return f"{low} to {high}"
