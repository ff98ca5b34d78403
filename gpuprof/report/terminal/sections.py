"""How output for the terminal is laid out: sections with their name in the gutter, paragraphs, notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from gpuprof.diagnosis.result.diagnosis import Issue
from gpuprof.report.lines import Prose, prose
from gpuprof.report.names import escape
from gpuprof.units import Cells, Convention

if TYPE_CHECKING:
    from gpuprof.diagnosis.comparison.comparison import Note

GUTTER: Convention[Cells] = 13
"""Columns to the left of the content, for the name of the section."""
NARROW_BELOW: Convention[Cells] = 60
"""Width below which sections that hold code begin below their name, INDENT columns in: code breaks less often there."""
INDENT: Convention[Cells] = 4
WIDEST_PAGE: Convention[Cells] = 160
"""Widest output, in columns: longer lines are hard to read."""
_MARKS = {"error": ("✗", "bold red"), "warning": ("!", "bold yellow"), "info": ("·", "dim")}
Block = list[Text | Table]


def spaced(blocks: Iterable[Sequence[Text | Table]]) -> list[Text | Table]:
    lines: list[Text | Table] = []
    for block in blocks:
        lines += [Text(""), *block] if lines else block
    return lines


def section(title: str, lines: Sequence[Text | Table]) -> list[Text | Table]:
    """Lines next to the name of their section; they wrap within their own column."""
    if not lines:
        return []
    grid = Table.grid(padding=0)
    grid.add_column(width=GUTTER, no_wrap=True)
    grid.add_column(overflow="fold")
    for i, line in enumerate(lines):
        grid.add_row(Text(f"  {title}" if i == 0 else "", "dim"), prose(line) if isinstance(line, Text) else line)
    return [grid]


def with_code(title: str, width: int, lines_in: Callable[[int], Sequence[Text | Table]]) -> Block:
    """A section that holds code, from its lines in a number of columns; on a narrow screen below its name."""
    if width >= NARROW_BELOW:
        return section(title, lines_in(width - GUTTER))
    lines = lines_in(width - INDENT)
    if not lines:
        return []
    grid = Table.grid(padding=0)
    grid.add_column(width=INDENT)
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row("", prose(line) if isinstance(line, Text) else line)
    return [Text(f"  {title}", "dim"), grid]


def paragraph(text: str | None, style: str = "") -> list[Text]:
    return [Prose(escape(text), style)] if text else []


def issues(found: Sequence[Issue | Note]) -> list[Text | Table]:
    """One issue per row after its mark; the worst first."""
    rows: list[Text | Table] = []
    for issue in sorted(found, key=lambda i: list(_MARKS).index(i.severity)):
        mark, style = _MARKS[issue.severity]
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=1)
        grid.add_column(overflow="fold")
        grid.add_row(Text(mark, style), Prose(escape(issue.message), "dim" if issue.severity == "info" else ""))
        rows.append(grid)
    return rows
