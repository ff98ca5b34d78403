"""Who holds the GPU's memory, as a screen of text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gpuprof.diagnosis.verdict.step_parts import Bar, BarPart
from gpuprof.memory.advice import Advice
from gpuprof.memory.memory_report import Difference, MemoryReport, ReportedDevice
from gpuprof.report.lines import Column, flow, table
from gpuprof.report.numbers import share
from gpuprof.report.stepbar import cells
from gpuprof.report.terminal.sections import GUTTER, WIDEST_PAGE, paragraph, section
from gpuprof.report.words import memory_words as words
from gpuprof.units import Convention, Rows

ROWS: Convention[Rows] = 4
"""Lines of Python shown by default."""
MOST_LEAKS: Convention[Rows] = 3
MARKS = {
    "weights": ("W", "blue"),
    "adapters": ("D", "bright_blue"),
    "optimizer_state": ("O", "red"),
    "gradients": ("G", "bright_red"),
    "activations": ("A", "green"),
    "logits": ("L", "yellow"),
    "kv_cache": ("K", "magenta"),
    "inputs": ("I", "cyan"),
    "backward_temporaries": ("B", "bright_yellow"),
    "communication": ("C", "bright_magenta"),
    "workspace": ("S", "bright_green"),
    "awaiting_free": ("F", "bright_cyan"),
    "before_history": ("H", "white"),
    "other": ("R", "bright_black"),
    "unused": ("∙", "bright_black"),
}
"""Fill and colour of each owner's part of a bar, the same in every bar, so that bars can be compared."""


def render(report: MemoryReport, width: int = 80, rows: int = ROWS) -> Group:
    """The report for a terminal of `width` columns, with `rows` lines of Python."""
    width = max(40, min(width, WIDEST_PAGE))
    inner = width - GUTTER
    return Group(*_of_device(report, width, rows), *advised(report.advice, inner, alone=not report.devices))


def _of_device(report: MemoryReport, width: int, rows: int) -> list[Text | Table]:
    """What a snapshot or memory events show."""
    inner = width - GUTTER
    if not report.devices:
        return []
    device = report.devices[0]
    return [
        Text.assemble((words.headline(device), "bold"), "   ", (words.moment(device), "dim")),
        *paragraph(words.summary(device)),
        *section("owners", _owners(device, inner)),
        *section("lines", _lines(device, inner, rows)),
        *section("phases", _phases(device, inner)),
        *section("each step", [Text(words.leak(one)) for one in device.leaks[:MOST_LEAKS]]),
        *section("difference", [] if report.difference is None else _difference(report.difference, inner, rows)),
        *section("other GPUs", [Text(line) for line in words.others(report)]),
        *section("note", [Text(issue.message, "yellow" if issue.severity == "warning" else "dim")
                          for issue in report.issues]),
    ]  # fmt: skip


def advised(advice: Advice | None, width: int, alone: bool = False) -> list[Text | Table]:
    """What a run's peak consists of, what would make it smaller, and what fits; alone: nothing is printed above."""
    if advice is None:
        return []
    title = [Text(words.measured(advice), "bold")] if alone else section("run", [Text(words.measured(advice))])
    return [
        *title,
        *section("made of", _parts([(one.owner, one.bytes) for one in advice.owners], advice.peak_bytes, width)),
        *section("fixes", _remedies(advice, width)),
        *section("notes", [Text(line, "dim") for line in words.notes(advice)]),
        *section("fits", [Text(line) for line in words.fitting(advice)]),
    ]


def _remedies(advice: Advice, width: int) -> list[Text]:
    found = [words.as_it_is(advice), *(words.remedy(one, advice) for one in words.worth(advice))]
    return table(found, (Column(elastic=True), Column("bold", right=True), Column(right=True), Column("dim")), width)


def _owners(device: ReportedDevice, width: int) -> list[Text]:
    """A bar of the peak, and its legend."""
    peak = device.peak
    total = peak.allocated_bytes if peak.reserved_bytes is None else peak.reserved_bytes
    return _parts([(one.owner, one.bytes) for one in peak.owners], total, width)


def _parts(owners: Sequence[tuple[str, int]], total: int, width: int) -> list[Text]:
    """A bar of owners in their letters and colours, and the legend of what it draws."""
    whole = Bar(0, total, tuple(BarPart(owner, size, False) for owner, size in owners))
    bar, items = Text(no_wrap=True, overflow="crop"), []
    for (owner, size), n in zip(owners, cells(whole, min(width, 60)), strict=True):
        if n:
            fill, style = MARKS[owner]
            bar.append(fill * n, style)
            items.append(Text.assemble((fill, style), f" {words.NAMES[owner]} ", (words.size(size), "bold"),
                                       f" {share(size, total)}"))  # fmt: skip
    return [bar, *flow(items, width)] if items else []


def _lines(device: ReportedDevice, width: int, rows: int) -> list[Text]:
    cells = [
        (words.size(one.bytes), words.place(one), f"×{one.count:,}" if one.count > 1 else "", words.NAMES[one.owner])
        for one in device.peak.lines[:rows]
    ]
    return table(cells, (Column("bold", right=True), Column(elastic=True), Column("dim", right=True), Column("dim")),
                 width)  # fmt: skip


def _phases(device: ReportedDevice, width: int) -> list[Text]:
    return flow([Text(f"{one.phase} {words.size(one.bytes)}") for one in device.peak.phases if one.bytes], width)


def _difference(found: Difference, width: int, rows: int) -> list[Text]:
    owners = [Text(f"{words.NAMES[one.owner]} {words.signed(one.bytes)}") for one in found.owners if one.bytes]
    cells = [(words.signed(one.bytes), words.place(one), words.NAMES[one.owner]) for one in found.lines[:rows]]
    columns = (Column("bold", right=True), Column(elastic=True), Column("dim"))
    return [Text(words.difference(found), "bold"), *flow(owners, width), *table(cells, columns, width)]
