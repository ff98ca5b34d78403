"""The state of a folder, to detect whether a program has changed it."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

from gpuprof.record.files.session_files import FileId
from gpuprof.runfile import RUNS
from gpuprof.units import Assumed, Files

MOST_FILES: Assumed[Files] = 50_000
"""Most files of a tree that is checked."""
_SKIPPED = frozenset({RUNS, ".git", "__pycache__", ".venv", "node_modules"})

State = dict[str, tuple[int, int, int]]
"""Path → (size, modification time in ns, inode)."""


def state_of(folder: Path, without: Path | None = None, outputs: Container[FileId] = ()) -> State | None:
    """The files and folders of a tree, except `without`; None if there are more than MOST_FILES.
    outputs: files that may change, because the user has redirected output there.
    """
    found: State = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED and Path(root, name) != without]
        for name in (*files, *folders):
            path = f"{root}/{name}"
            try:
                status = os.lstat(path)
            except OSError:
                continue
            # A folder's own time and size change with its contents, which are checked anyway.
            is_file = name not in folders
            if is_file and (status.st_dev, status.st_ino) in outputs:
                continue
            found[path] = (status.st_size if is_file else 0, status.st_mtime_ns if is_file else 0, status.st_ino)
        if len(found) > MOST_FILES:
            return None
    return found


def changes(before: State | None, after: State | None) -> list[str]:
    """The differences, `made x`, `deleted y`, `changed z`; empty if the tree was not checked."""
    if before is None or after is None:
        return []
    found = [f"made {path}" for path in after.keys() - before.keys()]
    found += [f"deleted {path}" for path in before.keys() - after.keys()]
    found += [f"changed {path}" for path in before.keys() & after.keys() if before[path] != after[path]]
    return sorted(found)
