"""The interpreter's audit events (PEP 578) about files: which paths are written, deleted or renamed.

Every Python of a run loads this file, so it imports next to nothing.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpuprof.units import Code, Convention

    Handlers = dict[str, Callable[[tuple[Any, ...]], None]]

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""Flags of `open` that a reader never gives."""
_HERE: Convention[Code] = -1
"""The folder descriptor of an event in which none was given."""


def text_of(path: Any) -> str | None:
    """The path as text; None for a descriptor."""
    if isinstance(path, int) or path is None:
        return None if path is not None else "."
    try:
        return os.fsdecode(path)
    except TypeError:
        return None


def full_path(path: Any, folder: Any = _HERE) -> str | None:
    """The absolute path of what a call names; None where it names no file.

    path: text, bytes, or the descriptor of an open file. folder: the descriptor of the folder that the path starts
    from, or -1 or None for the working directory.
    """
    if isinstance(path, int) and not isinstance(path, bool):
        return _path_of_descriptor(path)
    text = text_of(path)
    if text is None:
        return None
    if isinstance(folder, int) and folder >= 0 and not os.path.isabs(text):
        text = os.path.join(_path_of_descriptor(folder) or "", text)
    return os.path.abspath(text)


def _path_of_descriptor(number: int) -> str | None:
    try:
        path = _read_link(f"/proc/self/fd/{number}")
    except OSError:
        return None
    return path if path.startswith("/") and not path.startswith("/memfd:") and not path.endswith(" (deleted)") else None


_read_link = os.readlink
"""Kept before a trial redirects it."""


def handlers(seen: Callable[[str, str], None]) -> Handlers:
    """Event → handler of its arguments, which calls `seen(verb, absolute path)` for every path that is changed.

    The verbs: writes, makes, deletes, renames, links, changes.
    """

    def tell(verb: str, path: Any, folder: Any = _HERE) -> None:
        full = full_path(path, folder)
        if full is not None:
            seen(verb, full)

    def opens(arguments: tuple[Any, ...]) -> None:
        path, _, flags = arguments[:3]
        if isinstance(flags, int) and flags & WRITES and not isinstance(path, int):
            tell("writes", path)

    def renames(arguments: tuple[Any, ...]) -> None:
        source, target, source_folder, target_folder = arguments
        tell("renames", source, source_folder)
        tell("renames", target, target_folder)

    def database(arguments: tuple[Any, ...]) -> None:
        path = database_path(arguments[0])
        if path is not None:
            tell("writes", path)

    return {
        "open": opens,
        "os.mkdir": lambda a: tell("makes", a[0], a[-1]),
        "os.rmdir": lambda a: tell("deletes", a[0], a[-1]),
        "os.remove": lambda a: tell("deletes", a[0], a[-1]),
        "os.rename": renames,
        "os.link": lambda a: tell("links", a[1], a[-1]),
        "os.symlink": lambda a: tell("links", a[1], a[-1]),
        "os.truncate": lambda a: tell("changes", a[0]),
        "os.chmod": lambda a: tell("changes", a[0], a[-1]),
        "os.chown": lambda a: tell("changes", a[0], a[-1]),
        "os.utime": lambda a: tell("changes", a[0], a[-1]),
        "os.setxattr": lambda a: tell("changes", a[0]),
        "os.removexattr": lambda a: tell("changes", a[0]),
        "sqlite3.connect": database,
    }


def database_path(name: Any) -> str | None:
    """The file of an SQLite database that may be written; None for one in memory, or one that is opened to be read."""
    text = text_of(name)
    if not text or text == ":memory:":
        return None
    if not text.startswith("file:"):
        return text
    from urllib.parse import parse_qs, unquote, urlsplit  # only where a program gives a URI

    parts = urlsplit(text)
    options = parse_qs(parts.query)
    if options.get("mode", [""])[-1] in ("ro", "memory"):
        return None
    path = unquote(parts.path)
    return path if path and path != ":memory:" else None
