"""gpuprof's own lines on stderr while it records."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Seconds


PATIENCE_S: Assumed[Seconds] = 3.0
"""Seconds without output after the target's end, before a line says what gpuprof does."""


def tell(message: str) -> None:
    """Prints one line to stderr, in one write; control characters in names are escaped."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    _write(f"gpuprof: {line}\n".encode("utf-8", "backslashreplace"))


def _write(text: bytes) -> None:
    try:
        os.write(2, text)
    except OSError:  # no one is left to tell
        pass
