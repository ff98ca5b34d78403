"""Text that fits a width: aligned columns, and items in a row that are never broken."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.containers import Lines as RichLines
from rich.text import Text

from gpuprof.report.names import shorten
from gpuprof.units import Cells, Convention

GAP_WIDTH: Convention[Cells] = 2
"""Blank cells between columns and between items."""


_UNIT = r"(?:ns|µs|ms|s|min|h|d|[kMGT]i?B|µ?J|mJ|W|million|M|B)\b|%|×"
_AMOUNT = re.compile(rf"(?<=\d) (?={_UNIT})")
_KEPT = "\ue000"
"""Stands for the blank of an amount while lines are broken; no text has it, since those that come from files are
escaped."""


class Prose(Text):
    """Text that breaks between words, but not between a number and its unit: `3.9 µs`, `12 %`."""

    def wrap(self, *arguments: Any, **options: Any) -> RichLines:
        whole = self.copy()
        whole.plain = _AMOUNT.sub(_KEPT, self.plain)
        lines = whole.wrap(*arguments, **options)
        for line in lines:
            line.plain = line.plain.replace(_KEPT, " ")
        return lines


def prose(text: Text) -> Prose:
    """The same text, kept from breaking within an amount."""
    found = Prose(
        text.plain, text.style, justify=text.justify, overflow=text.overflow, no_wrap=text.no_wrap, end=text.end
    )
    found.spans.extend(text.spans)
    return found


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
    over = sum(widths) + GAP_WIDTH * (len(used) - 1) - width
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
        line.append(" " * GAP_WIDTH if line else "")
        line.append(f"{blank}{text}" if column.right else f"{text}{blank}", column.style)
    line.rstrip()
    return line


def flow(items: Sequence[Text], width: int) -> list[Text]:
    """Items side by side, a new line where the next does not fit; no item is broken."""
    lines: list[Text] = []
    for item in items:
        if lines and lines[-1].cell_len + GAP_WIDTH + item.cell_len <= width:
            lines[-1].append(" " * GAP_WIDTH).append_text(item)
        else:
            lines.append(item.copy())
    return lines
