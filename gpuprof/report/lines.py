"""Text that fits a width: aligned columns, and items in a row that are never broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from gpuprof.report.names import shorten

GAP = 2
"""Blank cells between columns and between items."""


@dataclass(frozen=True, slots=True)
class Column:
    """How one column of a table looks."""

    style: str = ""
    right: bool = False
    elastic: bool = False
    """Whether it gives up width when the row does not fit."""
    shorten: Callable[[str, int], str] = shorten
    """Shortens a cell of an elastic column to a width."""


def table(rows: Sequence[Sequence[str]], columns: Sequence[Column], width: int) -> list[Text]:
    """One line per row; elastic columns are shortened in the middle until the rows fit."""
    if not rows:
        return []
    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(columns))]
    _squeeze(widths, columns, width)
    return [_row(row, columns, widths) for row in rows]


def _squeeze(widths: list[int], columns: Sequence[Column], width: int) -> None:
    """Takes cells from the widest elastic column until the row fits, or none has any to give."""
    used = [i for i, w in enumerate(widths) if w]
    over = sum(widths) + GAP * (len(used) - 1) - width
    elastic = [i for i in used if columns[i].elastic]
    while over > 0 and elastic:
        widest = max(elastic, key=lambda i: widths[i])
        if widths[widest] <= 8:
            return
        widths[widest] -= 1
        over -= 1


def _row(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> Text:
    line = Text(no_wrap=True, overflow="crop")
    for cell, column, width in zip(row, columns, widths, strict=True):
        if not width:
            continue
        text = column.shorten(cell, width) if column.elastic else cell
        blank = " " * (width - cell_len(text))
        line.append(" " * GAP if line else "")
        line.append(f"{blank}{text}" if column.right else f"{text}{blank}", column.style)
    line.rstrip()
    return line


def flow(items: Sequence[Text], width: int) -> list[Text]:
    """Items side by side, a new line where the next does not fit; no item is broken."""
    lines: list[Text] = []
    for item in items:
        if lines and lines[-1].cell_len + GAP + item.cell_len <= width:
            lines[-1].append(" " * GAP).append_text(item)
        else:
            lines.append(item.copy())
    return lines
