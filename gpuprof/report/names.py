"""Escapes and shortens names from traces for display.

A trace is untrusted. A kernel or range may have any name, including escape sequences that rewrite the terminal and
characters that reverse a line, so every such text goes through here.
"""

from __future__ import annotations

import unicodedata

from rich.cells import cell_len

from gpuprof.report.kernel_names import readable_kernel
from gpuprof.units import Cells, Characters, Convention

_INVISIBLE = frozenset("\u115f\u1160\u3164\uffa0\u2800")
"""Characters that Unicode counts as letters or symbols but that look blank: Hangul fillers, the empty Braille cell."""

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"})
"""Unicode categories: controls, format (bidi, zero-width), surrogates, unassigned, private, line ends."""

_MARKS_IN_A_ROW: Convention[Characters] = 2
"""Combining marks that a letter may carry; more would run into neighbouring lines."""

_SHORTEST_BASE: Convention[Cells] = 5
"""Cells that a kernel's own name is cut to before its functors are cut as well."""

_LONG_NAME: Convention[Characters] = 4096
"""Characters beyond which only the ends of a name are looked at."""


def escape(text: str) -> str:
    """One line in which every character shows: controls as \\x1b, bidi and zero-width ones as \\u202e."""
    if text.isascii() and text.isprintable():
        return text
    marks = 0
    shown = []
    for char in unicodedata.normalize("NFC", text):
        category = unicodedata.category(char)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        unsafe = category in _UNSAFE or char in _INVISIBLE or marks > _MARKS_IN_A_ROW
        shown.append(_escaped(ord(char)) if unsafe else char)
    return "".join(shown)


def _escaped(code: int) -> str:
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` terminal cells; the middle is left out, as both ends of a name are informative."""
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return "…"[: max(width, 0)]
    tail = (width - 1) // 2
    return _cells(text, width - 1 - tail) + "…" + _cells(text[::-1], tail)[::-1]


def _cells(text: str, width: int) -> str:
    """As much of the start of `text` as fits into `width` cells."""
    used = 0
    for i, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:i]
    return text


def shown(name: str | None, width: int = 80) -> str:
    """Any name from a trace, ready to print; a dash if unknown."""
    if name is None:
        return "–"
    ends = name if len(name) <= _LONG_NAME else f"{name[: _LONG_NAME // 2]}…{name[-_LONG_NAME // 2 :]}"
    return shorten(escape(ends), width)


def shown_place(place: str, width: int = 80) -> str:
    """A place in code, `…/programs/train.py:40 step`, ready to print; where it is too long, its first folders are left
    out, since the file, the line and the function say where to look."""
    text = escape(place)
    if cell_len(text) <= width:
        return text
    path, blank, function = text.partition(" ")
    folders = path.split("/")
    for kept in range(len(folders) - 1, 0, -1):
        shorter = f"…/{'/'.join(folders[-kept:])}{blank}{function}"
        if cell_len(shorter) <= width:
            return shorter
    return shorten(file_name(text), width)


def file_name(place: str) -> str:
    """A place in code without the folders of its file."""
    path, blank, function = place.partition(" ")
    return f"{path.rpartition('/')[2]}{blank}{function}"


def shown_kernel(name: str, width: int = 80) -> str:
    """A kernel's name, ready to print, C++ reduced to its readable part."""
    return shorten_kernel(shown(readable_kernel(name), 4 * width), width)


def shorten_kernel(text: str, width: int) -> str:
    """Like `shorten`, but keeps the part in <> for as long as possible: it says what the kernel does."""
    base, bracket, functors = text.partition("<")
    room = width - cell_len(functors) - 1
    if not bracket or cell_len(text) <= width or room < _SHORTEST_BASE:
        return shorten(text, width)
    return f"{shorten(base, room)}<{functors}"
