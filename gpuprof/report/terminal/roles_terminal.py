"""Roles on one timeline, as a screen of text."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gpuprof.diagnosis.roles.model import Role, Roles, Span
from gpuprof.report.lines import flow
from gpuprof.report.names import escape
from gpuprof.report.numbers import duration, share
from gpuprof.report.stepbar import LEAST_LISTED
from gpuprof.report.terminal.roles_words import PAINT_OF_WAITING, paint, phases_there, queue, wait
from gpuprof.report.terminal.sections import GUTTER, WIDEST_PAGE, paragraph, section
from gpuprof.units import Convention, Iterations, Rows

ROWS: Convention[Rows] = 5
"""Lines of who waits for whom, shown by default."""
MOST_ITERATIONS: Convention[Iterations] = 4
"""Iterations that the lanes show, from the middle of the window; all where there are fewer."""


def render(found: Roles, width: int = 80, rows: int = ROWS) -> Group:
    """The roles for a terminal of `width` columns, with `rows` lines of who waits for whom."""
    width = max(40, min(width, WIDEST_PAGE))
    inner = width - GUTTER
    each = f"{duration(found.iteration_ns)} an iteration   " if found.iteration_ns else ""
    of = f"{len(found.roles)} processes on one timeline of {duration(found.window_ns)}"
    lines: list[Text | Table] = [Text.assemble((each, "bold"), (of, "dim")), *paragraph(found.limit), Text()]
    low, high = part_shown(found)
    for one in found.roles:
        lines += section(one.role, [lane(one.lane, low, high, inner), Text(_times(one), "dim")])
    lines += section("", [*flow(_legend(found), inner), Text(f"the lanes are {duration(high - low)} long", "dim")])
    waits = [one for one in found.waits if one.ns >= LEAST_LISTED * found.window_ns][:rows]
    lines += section("waits", [Text(wait(one, found.window_ns)) for one in waits])
    lines += section("queue", [Text(queue(found))] if found.queue else [])
    notes = [Text(one.message, "yellow" if one.severity == "warning" else "dim") for one in found.issues]
    return Group(*lines, *section("note", notes))


def part_shown(found: Roles) -> tuple[int, int]:
    """The part of the window that lanes show: MOST_ITERATIONS iterations around its middle."""
    long = min(found.window_ns, MOST_ITERATIONS * (found.iteration_ns or found.window_ns))
    low = (found.window_ns - long) // 2
    return low, low + long


def lane(spans: tuple[Span, ...], low: int, high: int, width: int) -> Text:
    """A role's time from `low` to `high`; each cell shows the phase with most of its time."""
    cells: list[dict[str, int]] = [{} for _ in range(width)]
    each = (high - low) / width
    for one in spans:
        start, end = max(one.start_ns, low) - low, min(one.end_ns, high) - low
        for i in range(int(start / each), min(int(end / each) + 1, width)) if end > start else ():
            ns = round(min(end, (i + 1) * each) - max(start, i * each))
            if ns > 0:
                cells[i][one.phase] = cells[i].get(one.phase, 0) + ns
    line = Text(no_wrap=True, overflow="crop")
    for cell in cells:
        one = paint(max(cell, key=lambda phase: cell[phase])) if cell else PAINT_OF_WAITING
        line.append(one.fill, one.terminal)
    return line


def _legend(found: Roles) -> list[Text]:
    paints = [(phase, paint(phase)) for phase in phases_there(found)]
    return [Text.assemble((one.fill, one.terminal), f" {phase} ") for phase, one in paints]


def _times(one: Role) -> str:
    parts = [f"{part.phase} {share(part.ns, one.busy_ns + one.wait_ns)}" for part in one.phases if part.ns]
    waits = f"waits {share(one.wait_ns, one.busy_ns + one.wait_ns)}"
    bubble = f" ({share(one.bubble_share, 1)} while others work)" if one.wait_ns else ""
    program = f"   {escape(one.program)}" if one.program else ""
    return ", ".join([*parts[:4], waits]) + bubble + program
