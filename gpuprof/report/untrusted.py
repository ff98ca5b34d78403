"""Text that comes from a recording, made fit for an agent: short, on one line, and fenced as data.

A kernel, a range or a file may be named anything, instructions to a language model included. One function, `fenced`,
shows every such name; `cleaned` applies it to a whole answer.
"""

from __future__ import annotations

from typing import Any

from gpuprof.report.names import escape, shorten

BEGIN, END = "⟦", "⟧"
"""Around what a recording says. In a name they are escaped, so that none can end its fence."""
LONGEST = 120
"""Characters of a name."""
LONGEST_TEXT = 1500
"""Characters of a sentence, which may quote names."""
NAMES = frozenset({
    "name", "names", "op", "ops", "module", "modules", "frame", "frames", "function", "functions", "caller", "kernel",
    "kernels", "file", "files", "class", "label", "range", "stack", "model", "trainer", "optimizer", "gpu", "error",
    "cell", "category_name", "work", "where_name", "thread",
})  # fmt: skip
"""Keys of an answer whose texts are names from a recording."""
OWN = frozenset({"fix", "fixes", "settings"})
"""Keys of objects whose names are gpuprof's own."""
PATHS = frozenset({"path", "paths"})
"""Keys of what an agent hands back to a tool: escaped, not fenced."""


def fenced(name: str) -> str:
    """A name from a recording: at most LONGEST characters, every character showing, in a fence."""
    return f"{BEGIN}{_short(_without_fence(name), LONGEST)}{END}"


def unfenced(text: str) -> str:
    """What an agent hands back, without the fence that it was shown in."""
    return text[1:-1] if len(text) > 1 and text.startswith(BEGIN) and text.endswith(END) else text


def sentence(text: str) -> str:
    """One of our own sentences, which may quote a recording: every character shows, fences are escaped."""
    return _short(_without_fence(text), LONGEST_TEXT)


def cleaned(value: Any, key: str = "") -> Any:
    """An answer in which names are fenced and all other texts are escaped. Keys and numbers stay."""
    if isinstance(value, dict):
        return {
            name: cleaned(item, name if key not in OWN or not isinstance(item, str) else "")
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [cleaned(item, key) for item in value]
    if not isinstance(value, str):
        return value
    if key in NAMES:
        return fenced(value)
    return escape(value) if key in PATHS else sentence(value)


def _without_fence(text: str) -> str:
    return text.replace(BEGIN, "\\u27e6").replace(END, "\\u27e7")


def _short(text: str, most: int) -> str:
    # Only the ends can remain of a long one, which bounds the time that escaping takes.
    return shorten(escape(text if len(text) <= 4 * most else text[: 2 * most] + text[-2 * most :]), most)
