"""Files that the user's own session writes: where output is redirected to (`> log.txt`, `| tee log.txt`)."""

from __future__ import annotations

import contextlib
import os
import stat

FileId = tuple[int, int]
"""Device and inode."""


def files_of_session() -> set[FileId]:
    """Regular files that processes of this session have open: this one, its shell, and what it pipes into."""
    found: set[FileId] = set()
    session = os.getsid(0)
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if os.getsid(int(name)) == session:
                found |= _open_in(f"/proc/{name}/fd")
    return found


def _open_in(folder: str) -> set[FileId]:
    found = set()
    for number in os.listdir(folder):
        with contextlib.suppress(OSError):
            status = os.stat(f"{folder}/{number}")
            if stat.S_ISREG(status.st_mode):
                found.add((status.st_dev, status.st_ino))
    return found
