"""Prepares text from a recording for an agent: short, on one line, and fenced as data.
A kernel, a range or a file may have any name, including instructions to a language model. `fenced` formats one such
name; `cleaned` applies it to a whole answer, and to names that its sentences quote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from gpuprof.report.kernel_names import readable_kernel
from gpuprof.report.names import escape, shorten
from gpuprof.units import Characters, Convention

BEGIN, END = "⟦", "⟧"
"""The fence around text from a recording. Inside a name these are escaped, so that it cannot end its fence."""
LONGEST_NAME: Convention[Characters] = 120
"""Characters of a name."""
LONGEST_TEXT: Convention[Characters] = 1500
"""Characters of a sentence, which may quote names."""
NAMES = frozenset({
    "name", "names", "op", "ops", "module", "modules", "frame", "frames", "function", "functions", "caller", "kernel",
    "kernels", "file", "files", "class", "label", "range", "stack", "model", "trainer", "optimizer", "gpu", "error",
    "cell", "category_name", "work", "where_name", "thread",
})  # fmt: skip
"""Keys of an answer whose values are names from a recording."""
OWN = frozenset({"fix", "fixes", "settings", "patch"})
"""Keys of objects whose names are gpuprof's own."""
CODE = frozenset({"fix", "fix_lines", "lines", "settle", "command", "patch", "settings", "value", "arguments"})
"""Keys of values to be pasted or called: a fence would break them."""
SHORTEST_SOUGHT: Convention[Characters] = 4
"""Shortest name that is searched for in sentences."""
_QUOTED_FROM: Convention[Characters] = 40
"""From this length on a sentence may quote only the ends of a name."""
_ENDS_LENGTH: Convention[Characters] = 8
"""Characters at each end by which such a quotation is recognised."""
PATHS = frozenset({"path", "paths"})
"""Keys of values that an agent passes back to a tool: escaped, not fenced."""


def fenced(name: str) -> str:
    """A name from a recording in a fence: at most LONGEST_NAME characters, all of them visible."""
    return f"{BEGIN}{_short(_without_fence(name), LONGEST_NAME)}{END}"


def unfenced(text: str) -> str:
    """Text that an agent passes back, without the fence."""
    return text[1:-1] if len(text) > 1 and text.startswith(BEGIN) and text.endswith(END) else text


def sentence(text: str) -> str:
    """One of our own sentences, which may quote a recording: invisible characters and fences are escaped."""
    return _short(_without_fence(text), LONGEST_TEXT)


def cleaned(value: Any, names: Iterable[str] = ()) -> Any:
    """An answer in which names are fenced and all other texts are escaped. Keys and numbers stay.

    `names`: what the recording calls its ops, kernels, files and so on; where a sentence quotes one, or a name that
    the answer has elsewhere, it is fenced as well. A single word is not an instruction, and stays unchanged if it
    stands alone or has letters only.
    """
    texts = list(_texts(value))
    quoted = "\n".join(text for key, text in texts if key not in NAMES)
    known = {*names, *(text for key, text in texts if key in NAMES)}
    return _cleaned(value, "", _quotations(known, quoted))


def fence_names(text: str, names: Iterable[str]) -> str:
    """One of our own pages with the names that it quotes fenced."""
    return _fence(_without_fence(text), _quotations(names, text))


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """All texts of an answer with their keys."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(item, name if key not in OWN or not isinstance(item, str) else "")
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)
    elif isinstance(value, str):
        yield key, value


def _quotations(names: Iterable[str], text: str) -> re.Pattern[str] | None:
    """A pattern for the names that the text quotes, whole or with the middle left out; None if it quotes none."""
    found = set()
    for name in names:
        if len(name) < SHORTEST_SOUGHT or name.isalpha() or not any(map(str.isalpha, name)):
            continue
        for form in {name, readable_kernel(name)} if "(" in name or "<" in name else (name,):
            if form in text:
                found.add(re.escape(escape(_without_fence(form))))
            elif (
                len(form) >= _QUOTED_FROM
                and form[:_ENDS_LENGTH] in text
                and form[-_ENDS_LENGTH:] in text
                and "…" in text
            ):
                ends = (re.escape(escape(_without_fence(end))) for end in (form[:_ENDS_LENGTH], form[-_ENDS_LENGTH:]))
                found.add("[^…\n]*…[^…\n]*?".join(ends))
    if not found:
        return None
    longest_first = sorted(found, key=lambda one: (-len(one), one))
    return re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)")


def _fence(text: str, quotations: re.Pattern[str] | None) -> str:
    return text if quotations is None else quotations.sub(lambda found: BEGIN + found[0] + END, text)


def _cleaned(value: Any, key: str, quotations: re.Pattern[str] | None) -> Any:
    if isinstance(value, dict):
        return {
            name: _cleaned(item, name if key not in OWN or not isinstance(item, str) else "", quotations)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_cleaned(item, key, quotations) for item in value]
    if not isinstance(value, str):
        return value
    if key in NAMES:
        return fenced(value)
    if key in PATHS:
        return escape(value)
    return sentence(value) if key in CODE or " " not in value else _fence(sentence(value), quotations)


def _without_fence(text: str) -> str:
    return text.replace(BEGIN, "\\u27e6").replace(END, "\\u27e7")


def _short(text: str, most: int) -> str:
    # Only the ends of a long text can remain; cutting first bounds the time for escaping.
    return shorten(escape(text if len(text) <= 4 * most else text[: 2 * most] + text[-2 * most :]), most)
