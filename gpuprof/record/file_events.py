"""The interpreter's audit events (PEP 578) that are about files: who writes, deletes or renames which path.

Every Python of a run loads this file, so it imports next to nothing.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Handlers = dict[str, Callable[[tuple[Any, ...]], None]]

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""Flags of `open` that a reader never gives."""
_HERE = -1
"""What events have in place of a folder's descriptor where none was given."""


def text_of(path: Any) -> str | None:
    """The path as text; None for a descriptor."""
    if isinstance(path, int) or path is None:
        return None if path is not None else "."
    try:
        return os.fsdecode(path)
    except TypeError:
        return None


def handlers(seen: Callable[[str, str], None]) -> Handlers:
    """Event → what to call with its arguments; that calls `seen(verb, absolute path)` for every path it changes.

    The verbs: writes, makes, deletes, renames, links, changes.
    """

    def tell(verb: str, paths: tuple[Any, ...], folder: Any = _HERE) -> None:
        for path in paths:
            text = text_of(path)
            if text is None:
                continue
            if isinstance(folder, int) and folder >= 0 and not os.path.isabs(text):
                text = os.path.join(os.path.realpath(f"/proc/self/fd/{folder}"), text)
            seen(verb, os.path.abspath(text))

    def opens(arguments: tuple[Any, ...]) -> None:
        path, _, flags = arguments[:3]
        if isinstance(flags, int) and flags & WRITES and not isinstance(path, int):
            tell("writes", (path,))

    def database(arguments: tuple[Any, ...]) -> None:
        path = text_of(arguments[0])
        if path and path != ":memory:" and not path.startswith("file:"):
            tell("writes", (path,))

    return {
        "open": opens,
        "os.mkdir": lambda a: tell("makes", a[:1], a[-1]),
        "os.rmdir": lambda a: tell("deletes", a[:1], a[-1]),
        "os.remove": lambda a: tell("deletes", a[:1], a[-1]),
        "os.rename": lambda a: tell("renames", a[:2], a[-1]),
        "os.link": lambda a: tell("links", a[1:2], a[-1]),
        "os.symlink": lambda a: tell("links", a[1:2], a[-1]),
        "os.truncate": lambda a: tell("changes", a[:1]),
        "os.chmod": lambda a: tell("changes", a[:1]),
        "os.chown": lambda a: tell("changes", a[:1]),
        "sqlite3.connect": database,
    }
