"""Lines of code that fit a width and can still be read: broken between words, else after punctuation."""

from __future__ import annotations

import re

from rich.cells import cell_len

_AFTER = re.compile(r"[^(\[{,=/|]*[(\[{,=/|]?")
"""A part of a word that ends in punctuation at which code may go on in the next line."""
_MEMBER = re.compile(r"(?<=[\w)\]])(?=\.[a-zA-Z_])")
"""Before the dot of a member: where a part that is still too long may break."""


def wrapped(line: str, width: int) -> list[str]:
    """The line in lines of at most `width` cells.

    A break is at a blank where there is one, else after an opening bracket, a comma, `=`, `/` or `|`, and never inside
    an identifier: one that is longer than the width gets a line of its own and stays whole. What goes on of a comment
    begins with `#` again.
    """
    if cell_len(line) <= width:
        return [line]
    lines = [""]
    for word in line.split(" "):
        glue = " " if lines[-1] else ""
        if cell_len(lines[-1] + glue + word) <= width:
            lines[-1] += glue + word
            continue
        mark = "# " if _in_comment(lines[-1]) else ""
        lines[-1] = lines[-1].removesuffix(" #").rstrip()
        if cell_len(mark + word) <= width:
            lines.append(mark + word)
            continue
        if not lines[-1]:
            lines.pop()
        lines += _parts(word, width, mark)
    return [text for text in lines if text]


def parts(code: str) -> tuple[str, ...]:
    """Code in the parts between which a line may break: after punctuation and before the dot of a member, not inside an
    identifier."""
    return tuple(part for whole in _AFTER.findall(code) for part in _MEMBER.split(whole) if part)


def without_comments(code: str) -> str:
    """Code without comments, and without the lines that are nothing else."""
    lines = (re.sub(r"(^|  )#.*", "", line) for line in code.splitlines())
    return "\n".join(line for line in lines if line.strip()) or code


def without_alternatives(code: str) -> str:
    """The first way to make a fix, without lines like `or larger save_steps`."""
    return "\n".join(line for line in code.splitlines() if not line.startswith("or ")) or code


def _in_comment(line: str) -> bool:
    return line.startswith("#") or " #" in line


def _parts(word: str, width: int, mark: str) -> list[str]:
    """A word that is too long by itself, filled into lines from one punctuation mark to the next."""
    lines = [mark]
    for part in _AFTER.findall(word):
        if lines[-1] != mark and cell_len(lines[-1] + part) > width:
            lines.append(mark)
        lines[-1] += part
    return lines
