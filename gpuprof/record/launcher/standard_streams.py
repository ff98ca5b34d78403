"""stdin, stdout and stderr of the launcher: they belong to the target."""

from __future__ import annotations

import contextlib
import os


def fill() -> None:
    """Reserves the numbers of streams that the shell has closed (`<&-`), so that no file of ours gets one; the target
    sees them closed."""
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            return


def let_go() -> None:
    """Closes stdin and stdout here: their other ends must see when the target has closed them."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        try:
            os.dup2(nowhere, descriptor)
        except OSError:
            pass
    os.close(nowhere)


def outputs() -> set[tuple[int, int]]:
    """Device and inode of stdout and stderr; `let_go` forgets them."""
    found = set()
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            found.add((status.st_dev, status.st_ino))
    return found
