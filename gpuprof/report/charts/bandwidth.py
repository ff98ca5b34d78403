"""Kernels without matrix work against the GPU's memory bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.charts.groups import hover, kernel_groups, known_roofline, largest, left_out, modelled_rows
from gpuprof.report.charts.roofline import ceiling, label, log_axis, points, si
from gpuprof.report.charts.style import figure
from gpuprof.report.numbers import duration, share
from gpuprof.units import Convention, Points

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_CURVE_POINTS: Convention[Points] = 40


def bandwidth(diagnosis: Diagnosis) -> Figure | None:
    """Kernels without matrix work: bytes per second over bytes per kernel.
    The ceiling is the memory bandwidth, bent down for kernels so small that the shortest possible kernel takes longer.
    None where the GPU's ceilings or the kernels' bytes are not known.
    """
    known = known_roofline(diagnosis)
    if known is None:
        return None
    timeline, roof = known
    rows = modelled_rows(timeline, roof)
    rows = rows[(roof.work.flops[rows] == 0) & (roof.work.bytes[rows] > 0)]
    groups = kernel_groups(timeline, roof, rows)
    if not groups:
        return None
    steps = len(timeline.steps.start_ns)
    chosen = largest(groups)
    size = [group.bytes / group.count for group in chosen]
    speed = [group.bytes_per_s for group in chosen]
    words = [
        [*hover(group, steps, diagnosis.unit), f"{si(group.bytes_per_s)}B/s, {si(each)}B each"]
        for group, each in zip(chosen, size, strict=True)
    ]
    limit, floor_ns = roof.ceilings.memory_bytes_per_s, roof.ceilings.launch_floor_ns
    knee = limit * floor_ns / 1e9
    x_range = min(size) / 3, max(max(size) * 3, knee * 30)
    y_range = min(min(speed) / 3, limit / 100), limit * 4
    x = np.geomspace(*x_range, _CURVE_POINTS)
    y = x / (floor_ns / 1e9 + x / limit)
    seen = y >= y_range[0]
    bent = ceiling(x[seen].tolist(), y[seen].tolist())
    total = diagnosis.kernels.total_ns if diagnosis.kernels else 0
    return figure(
        [ceiling([x_range[0], x_range[1]], [limit, limit], "dot"), bent, *points(chosen, size, speed, words)],
        {
            "xaxis": log_axis("bytes that one kernel moves", x_range),
            "yaxis": log_axis("bytes/s", y_range),
            "annotations": [
                label(f"memory {si(limit)}B/s", x_range[0], limit, xanchor="left", yanchor="bottom"),
            ],
        },
        title="Bandwidth of everything else",
        note=f"{share(sum(group.ns for group in groups), total)} of the GPU's time. The line bends"
        f" where a kernel cannot be shorter than {duration(floor_ns).replace('.0', '')}." + left_out(chosen, groups),
        legend="right",
        height=340,
        narrow={"xaxis.dtick": 3, "yaxis.dtick": 2, "annotations.0.font.size": 10},
    )
