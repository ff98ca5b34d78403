"""Input, output and errors of the process that starts the target: they are the target's."""

from __future__ import annotations

import contextlib
import os


def fill() -> None:
    """Where a shell has closed one (`<&-`), none of our own files may take its number; the target sees it closed."""
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            return


def let_go() -> None:
    """Of the target's input and output: who reads them must see when the target is done with them."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        try:
            os.dup2(nowhere, descriptor)
        except OSError:
            pass
    os.close(nowhere)


def outputs() -> set[tuple[int, int]]:
    """Device and inode of what standard output and error are; `let_go` forgets them."""
    found = set()
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            found.add((status.st_dev, status.st_ino))
    return found
