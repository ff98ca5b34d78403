"""What occupies a GPU's memory as one HTML file: a stacked area over time, phases below it, the peak as a bar and
tables.

`render` is a pure function of the report. The page's only script is that of the button that switches between light and
dark.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from gpuprof.memory.advice import Advice
from gpuprof.memory.memory_report import UNUSED, MemoryReport, ReportedDevice, Series
from gpuprof.report import palette
from gpuprof.report.names import escape, shown
from gpuprof.report.numbers import round_ticks, share
from gpuprof.report.page.html import palette_css, style, template, theme_button
from gpuprof.report.page.memory_peak import at_peak
from gpuprof.report.palette import OWNER_PAINTS, Paint
from gpuprof.report.words import memory_words as words
from gpuprof.units import Convention, Entries, Points, Rows

WIDTH: Convention[Points] = 1000
HEIGHT: Convention[Points] = 360
"""Size of the chart in its own coordinates; the page stretches them."""
TIME_MARKS: Convention[Entries] = 5
"""Labels along the time axis."""
ROWS: Convention[Rows] = 30
"""Rows of the table, each a line of Python."""
_SETUP = Paint("setup", "setup", "#94a3b8", "#7f8ea3")


@dataclass(frozen=True, slots=True)
class Area:
    """The area of one owner in the chart."""

    owner: str
    label: str
    path: str
    """Data of an SVG path."""


@dataclass(frozen=True, slots=True)
class Chart:
    """The areas over time, all in the chart's coordinates."""

    areas: tuple[Area, ...]
    reserved: str
    """Points of the line of reserved memory; empty where it is not known."""
    ticks: tuple[tuple[str, float], ...]
    """(label, percent from the top)."""
    times: tuple[tuple[str, float], ...]
    """(label, percent from the left)."""
    phases: tuple[tuple[str, float, float], ...]
    """(phase, left, width)."""
    peak: float
    """Where the peak is."""


def render(report: MemoryReport) -> str:
    """The page."""
    device = report.devices[0] if report.devices else None
    return template("memory.html").render(
        **theme_button(),
        styles=_css() + style("report.css") + style("memory.css"),
        name=shown(report.source.path.rsplit("/", 1)[-1], 80),
        path=escape(report.source.path),
        issues=[(issue.severity, escape(issue.message)) for issue in report.issues],
        memory=at_peak(report),
        difference=None if report.difference is None else words.difference(report.difference),
        differences=[] if report.difference is None else [
            (one.owner, words.NAMES[one.owner], words.signed(one.bytes), words.size(one.before_bytes),
             words.size(one.after_bytes)) for one in report.difference.owners if one.bytes
        ],
        others=words.others(report),
        **(_of_run(report.advice) if device is None else _of_device(device)),
    )  # fmt: skip


def _of_run(advice: Advice | None) -> dict[str, Any]:
    """What is shown for a run without a snapshot."""
    peak = words.size(advice.peak_bytes) if advice else ""
    total = advice.peak_bytes if advice else 0
    owners = [(one.owner, words.NAMES[one.owner], words.size(one.bytes), share(one.bytes, total), one.bytes, 0)
              for one in (advice.owners if advice else ())]  # fmt: skip
    return {
        "headline": f"Peak {peak}", "moment": "measured without the profiler", "summary":
        "Estimated from the model, its optimizer and the recorded ops; a snapshot shows lines of Python.",
        "owners": owners, "chart": None, "size": (WIDTH, HEIGHT), "lines": [], "rest": "", "phases": [], "leaks": [],
    }  # fmt: skip


def _of_device(device: ReportedDevice) -> dict[str, Any]:
    """What is shown for a snapshot or memory events."""
    peak = device.peak
    total = peak.allocated_bytes if peak.reserved_bytes is None else peak.reserved_bytes
    owners = [(one.owner, words.NAMES[one.owner], words.size(one.bytes), share(one.bytes, total), one.bytes, one.count)
              for one in peak.owners if one.bytes]  # fmt: skip
    lines = [(words.size(one.bytes), words.place(one), escape(one.file or ""), f"{one.count:,}", one.owner,
              words.NAMES[one.owner], one.phase) for one in peak.lines[:ROWS]]  # fmt: skip
    rest = peak.lines_rest_bytes + sum(one.bytes for one in peak.lines[ROWS:])
    return {
        "headline": words.headline(device, "Peak"),
        "moment": words.moment(device),
        "summary": words.summary(device),
        "owners": owners,
        "chart": chart(device) if len(device.series.event) > 1 else None,
        "size": (WIDTH, HEIGHT),
        "lines": lines,
        "rest": words.size(rest) if rest else "",
        "phases": [(one.phase, words.size(one.bytes)) for one in peak.phases if one.bytes],
        "leaks": [words.leak(one) for one in device.leaks],
    }


def chart(device: ReportedDevice) -> Chart:
    """The stacked areas of a device's memory over time."""
    series = device.series
    x = _x(series)
    reserved = np.array(series.reserved_bytes or (), np.int64)
    allocated = sum((np.array(values, np.int64) for values in series.owners.values()), np.zeros(len(x), np.int64))
    top = int(max(allocated.max(), reserved.max() if len(reserved) else 0)) or 1
    areas, base = [], np.zeros(len(x), np.int64)
    for owner in OWNER_PAINTS:
        if owner in series.owners:
            above = base + np.array(series.owners[owner], np.int64)
            areas.append(Area(owner, words.NAMES[owner], _area(x, _y(base, top), _y(above, top))))
            base = above
    if len(reserved) and (reserved > base).any():
        areas.append(Area(UNUSED, words.NAMES[UNUSED], _area(x, _y(base, top), _y(np.maximum(reserved, base), top))))
    at = int(np.searchsorted(np.array(series.event), device.peak.event))
    return Chart(
        areas=tuple(areas),
        reserved=" ".join(_stairs(x, _y(reserved, top))) if len(reserved) else "",
        ticks=tuple((label, 100 * (1 - value / top)) for label, value in reversed(words.ticks(top))),
        times=_times(series),
        phases=_phases(series, x),
        peak=float(x[min(at, len(x) - 1)]),
    )


def _x(series: Series) -> np.ndarray:
    values = np.array(series.event if series.seconds is None else series.seconds, float)
    return WIDTH * (values - values[0]) / ((values[-1] - values[0]) or 1.0)


def _y(values: np.ndarray, top: int) -> np.ndarray:
    return HEIGHT * (1 - values / top)


def _stairs(x: np.ndarray, y: np.ndarray) -> list[str]:
    """Points of a line that keeps its height until the next moment."""
    points = [f"{x[0]:.2f},{y[0]:.2f}"]
    for row in range(1, len(x)):
        points += [f"{x[row]:.2f},{y[row - 1]:.2f}", f"{x[row]:.2f},{y[row]:.2f}"]
    return points


def _area(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    return f"M{' '.join(_stairs(x, high))} L{' '.join(reversed(_stairs(x, low)))}Z"


def _times(series: Series) -> tuple[tuple[str, float], ...]:
    if series.seconds is None:
        low, high = series.event[0], series.event[-1]
        marks = [(f"event {round(at):,}", at) for at in round_ticks(high, TIME_MARKS) if at >= low]
    else:
        low, high = series.seconds[0], series.seconds[-1]
        scale, unit = (1e-3, "ms") if high - low < 1 else (1.0, "s")
        marks = [(f"{at:g} {unit}", low + at * scale) for at in round_ticks((high - low) / scale, TIME_MARKS)]
    return tuple((label, 100 * (at - low) / ((high - low) or 1)) for label, at in marks)


def _phases(series: Series, x: np.ndarray) -> tuple[tuple[str, float, float], ...]:
    """Stretches of one phase; the last moment has no length."""
    found = []
    for phase, rows in groupby(range(len(x)), key=lambda row: series.phase[row]):
        kept = list(rows)
        end = x[min(kept[-1] + 1, len(x) - 1)]
        if end > x[kept[0]]:
            found.append((phase, float(x[kept[0]]), float(end - x[kept[0]])))
    return tuple(found)


def _css() -> str:
    """Custom properties such as `--owner-weights`, for both themes."""
    return palette_css() + palette.themed(lambda theme: f"--phase-setup:{getattr(_SETUP, theme)};")
