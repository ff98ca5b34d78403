"""Notes which paths the program writes, deletes and renames, for `gpuprof try`, which must not let it do so again.

An audit hook (PEP 578) sees Python's own calls, in every Python of the run. It does not see writes of native code and
other programs: for these, the working directory is searched at the end of the run for files that changed. Every Python
of a run loads this file, so it imports next to nothing.
"""

from __future__ import annotations

import os
import sys

from .caches import caches
from .file_events import handlers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from gpuprof.units import Assumed, Bytes, Characters, Convention, Files, Names, Seconds

FILE = "written.jsonl"
"""Name of the file in the run's folder."""
MOST_PATHS: Convention[Names] = 200
"""Paths that a process notes."""
MOST_BYTES: Convention[Bytes] = 200_000
"""Largest size of the file; forks and ranks share it."""
LONGEST_PATH: Convention[Characters] = 1000
MOST_LOOKED_AT: Convention[Files] = 20_000
LOOKING_S: Assumed[Seconds] = 0.5
"""At the end of the run at most this many files of the working directory are checked, for at most this long."""
_NO_ONES = ("/dev/", "/proc/", "/sys/")
_SKIPPED = frozenset({".git", "__pycache__", ".venv", "node_modules"})


class Written:
    """Notes the paths that one process of a run changes."""

    def __init__(self, run: str) -> None:
        self._file = os.path.join(run, FILE)
        self._here = os.path.join(os.getcwd(), "")
        self._temporary = os.path.join(os.environ.get("TMPDIR") or "/tmp", "")
        self._left_out = (*_NO_ONES, *(os.path.join(one, "") for one in (run, os.path.realpath(run), *caches())))
        self._seen: set[tuple[str, str]] = set()
        self._full = False

    def watch(self) -> None:
        """Watches this process and its forks from now on. An audit hook cannot be removed; after MOST_PATHS paths it
        does nothing."""
        find = handlers(self.note).get

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            handler = find(event)
            if handler is not None and not self._full:
                try:
                    handler(arguments)
                except Exception:  # an error of ours must not break the program's call
                    pass

        sys.addaudithook(hook)

    def note(self, verb: str, path: str) -> None:
        """Notes that the program does this (writes, deletes …) to an absolute path."""
        if self._full or (verb, path) in self._seen or self._is_cache_or_temporary(path):
            return
        self._seen.add((verb, path))
        append(self._file, [(verb, path, os.getpid())])
        self._full = len(self._seen) >= MOST_PATHS

    def _is_cache_or_temporary(self, path: str) -> bool:
        """Whether the path is in a cache, or is a temporary file or compiled Python."""
        if path.startswith(self._left_out) or "__pycache__" in path:
            return True
        return path.startswith(self._temporary) and not path.startswith(self._here)


def append(file: str, found: Iterable[tuple[str, str, int | None]]) -> None:
    """Adds (verb, path, process) in one write; process is None for changes that no hook has seen."""
    import json  # only where something was written

    keys = "verb", "path", "pid"
    text = "".join(json.dumps(dict(zip(keys, (v, p[:LONGEST_PATH], i), strict=True))) + "\n" for v, p, i in found)
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        if os.fstat(descriptor).st_size < MOST_BYTES:
            os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def changed_since(
    folder: str, since_ns: int, known: set[str], without: set[str], outputs: set[tuple[int, int]]
) -> list[str]:
    """Files of a tree that changed after a moment (unix ns), and that no hook has seen: native code or another program
    wrote them. Bounded in files and in time. without: names of folders to skip. outputs: device and inode of further
    files to skip: the user has redirected output to them.
    """
    import time

    end, left, found = time.monotonic() + LOOKING_S, MOST_LOOKED_AT, []
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED | without]
        for name in files:
            path = os.path.join(root, name)
            try:
                status = os.lstat(path)
            except OSError:
                continue
            is_new = status.st_ctime_ns >= since_ns and (status.st_dev, status.st_ino) not in outputs
            if is_new and path not in known and len(found) < MOST_PATHS:
                found.append(path)
        left -= len(files)
        if left < 0 or time.monotonic() > end:
            break
    return sorted(found)
