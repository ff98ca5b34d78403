"""Where CPython keeps the stack of a thread: offsets in bytes, for 64-bit builds with a GIL.

From the headers of CPython 3.10 to 3.13 (`Include/cpython/pystate.h`, `Include/internal/pycore_frame.h`,
`Include/cpython/code.h`). They are never trusted: a sampler first reads a stack that is known, and continues only if it
reads exactly that (sampler.py).
"""

from __future__ import annotations

import sys
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Bytes, Published


BYTES_OF_HEADER: Published[Bytes] = 16
"""Reference count and type, at the start of every object."""
TYPE_AT: Published[Bytes] = 8
LENGTH_OF_BYTES: Published[Bytes] = 16
LENGTH_OF_TEXT: Published[Bytes] = 16
STATE_OF_TEXT: Published[Bytes] = 32
"""Bits of a str: 2 to 4 are the bytes per character, 5 is "compact", 6 is "ASCII"."""


class Layout(NamedTuple):
    """Offsets of one version of CPython. A thread state begins with the pointers to the previous and the next one."""

    frame_in_thread: int
    """Pointer to the innermost frame, or to the C frame that holds it."""
    frame_in_c_frame: int | None
    """3.11 and 3.12: the innermost frame within the C frame."""
    ident_in_thread: int
    """What `threading.get_ident` returns; in 3.11 and later the system's number of the thread comes next."""
    frame_bytes: int
    code: int
    previous: int
    instruction: int
    """3.10: the index of the last instruction, an int; later: the address of the instruction."""
    owner: int | None
    """3.12 and later: 3 for a frame of the interpreter itself, which belongs to no Python function."""
    filename: int
    name: int
    """3.11 and later: the qualified name."""
    line_table: int
    first_line: int

    frames_are_objects: bool = False
    """3.10: each frame is an object of its own; later frames lie next to each other."""
    text_of_ascii: int = 40
    text_of_others: int = 56
    """Where the characters of a str begin."""


_LAYOUTS = {
    (3, 10): Layout(24, None, 176, 104, 32, 24, 96, None, 104, 112, 120, 40, True, 48, 72),
    (3, 11): Layout(56, 8, 152, 72, 32, 48, 56, None, 112, 128, 136, 72, False, 48, 72),
    (3, 12): Layout(56, 0, 136, 72, 0, 8, 56, 70, 112, 128, 136, 68),
    (3, 13): Layout(72, None, 152, 72, 0, 8, 56, 70, 112, 128, 136, 68),
}


def layout() -> Layout | None:
    """The layout of the running Python; None if it is not known."""
    if sys.implementation.name != "cpython" or sys.maxsize < 1 << 62:
        return None
    return _LAYOUTS.get(sys.version_info[:2])
