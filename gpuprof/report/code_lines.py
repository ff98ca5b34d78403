"""Breaks lines of code to fit a width: between words, else after punctuation."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.cells import cell_len

from gpuprof.diagnosis.result.fix import FixLine
from gpuprof.units import Cells, Convention

_STRING = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\''
_COMMENT = re.compile(rf"(?:{_STRING}|[^#\"'])*?(#.*)")
"""A line and its comment; a `#` inside a string does not begin one."""
_UNIT = re.compile(rf"(?:{_STRING}|[^(\[{{,=/|\s\"']|[\"'])*[(\[{{,=/|]?|\s+")
"""Code up to punctuation after which a line may break; a string is never broken."""
_MEMBER = re.compile(r"(?<=[\w)\]])(?=\.[a-zA-Z_])")
"""Before the dot of a member: here a part without strings that is still too long may break."""
WHOLE_WORD: Convention[Cells] = 36
"""Longest part of a line between blanks that fits a phone, and is not broken."""
_WORD = re.compile(rf"(?:{_STRING}|[^\s\"']|[\"'])+")
_WORD_OR_BLANK = re.compile(rf"\s+|{_WORD.pattern}")


def wrapped(line: str, width: int) -> list[str]:
    """The line in lines of at most `width` cells.

    A break is at a blank where there is one, else after an opening bracket, a comma, `=`, `/` or `|`, and never inside
    an identifier or a string: one that is longer than the width gets a line of its own and stays whole. A continued
    comment begins with `#` again.
    """
    if cell_len(line) <= width:
        return [line]
    bare = line.lstrip()
    if bare != line:
        indent = line[: len(line) - len(bare)]
        return [f"{indent}{text}" for text in wrapped(bare, max(width - len(indent), 1))]
    code, comment = _split(line)
    lines = [""]
    for word in _WORD.findall(code):
        glue = " " if lines[-1] else ""
        if cell_len(lines[-1] + glue + word) <= width:
            lines[-1] += glue + word
        elif cell_len(word) <= width:
            lines.append(word)
        else:
            lines += _filled(word, width)
    for word in comment.split():
        if cell_len(f"{lines[-1]}  {word}") <= width or (word == "#" and not lines[-1]):
            glue = "" if not lines[-1] else "  " if word == "#" else " "
            lines[-1] += glue + word
        elif word != "#":
            lines[-1] = lines[-1].removesuffix("#").rstrip()
            lines.append(f"# {word}")
        else:
            lines.append("#")
    return [text for text in lines if text]


def parts(code: str) -> tuple[str, ...]:
    """Code in the parts between which a line may break: at blanks, and in words that are too long for a phone after
    punctuation and before the dot of a member, not inside an identifier or a string. They join to the code."""
    found: list[str] = []
    for at, line in enumerate(code.split("\n")):
        found += ["\n"] if at else []
        typed, comment = _split(line)
        for word in _WORD_OR_BLANK.findall(typed):
            found += [word] if cell_len(word) <= WHOLE_WORD else _units(word)
        found += re.findall(r"\s+|\S+", comment)
    return tuple(found)


def _units(word: str) -> Iterator[str]:
    """A long word in its units."""
    for unit in filter(None, _UNIT.findall(word)):
        if '"' in unit or "'" in unit:
            yield unit
        else:
            yield from filter(None, _MEMBER.split(unit))


def _split(line: str) -> tuple[str, str]:
    """(code, comment) of a line; blanks before the comment belong to the code."""
    found = _COMMENT.match(line)
    return (line[: found.start(1)], found[1]) if found else (line, "")


def without_comments(lines: Sequence[FixLine]) -> tuple[FixLine, ...]:
    """The lines without the comments of their code, and without remarks behind it."""
    kept = [replace(one, text=one.bare, comment_at=None) for one in lines if one.bare]
    while len(kept) > 1 and not kept[-1].code and not kept[-1].other:
        kept.pop()
    return tuple(kept) or tuple(lines)


def without_alternatives(lines: Sequence[FixLine]) -> tuple[FixLine, ...]:
    """The first way to make a fix, up to lines like `or larger save_steps`."""
    return tuple(itertools.takewhile(lambda one: not one.other, lines)) or tuple(lines)


def blocks(lines: Sequence[FixLine]) -> list[tuple[bool, list[str]]]:
    """Lines that follow each other and are all code, or all prose: (whether code, the lines)."""
    grouped = itertools.groupby(lines, key=lambda one: one.code)
    return [(is_code, [one.text for one in group]) for is_code, group in grouped]


def _filled(word: str, width: int) -> list[str]:
    """A word that is too long, broken after punctuation or before members."""
    lines = [""]
    units = filter(None, _UNIT.findall(word))
    for unit in (piece for one in units for piece in (_MEMBER.split(one) if _is_long(one, width) else (one,))):
        if lines[-1] and cell_len(lines[-1] + unit) > width:
            lines.append("")
        lines[-1] += unit
    return lines


def _is_long(unit: str, width: int) -> bool:
    return cell_len(unit) > width and '"' not in unit and "'" not in unit
