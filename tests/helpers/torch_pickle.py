"""Plain data as torch's C++ pickler writes it (torch/csrc/jit/serialization/pickler.cpp).

Texts are memoized at their first occurrence, and so are frames and the outermost dict; lists, tuples and other dicts
are not.
"""

from __future__ import annotations

import struct
from typing import Any


def dumps(value: Any) -> bytes:
    """The pickle, protocol 2."""
    pickler = _Pickler()
    return b"\x80\x02" + pickler.one(value) + pickler.put("") + b"."


class _Pickler:
    def __init__(self) -> None:
        self._places: dict[Any, int] = {}

    def one(self, value: Any) -> bytes:
        if value is None:
            return b"N"
        if isinstance(value, bool):
            return b"\x88" if value else b"\x89"
        if isinstance(value, int):
            return _number(value)
        if isinstance(value, str):
            data = value.encode()
            return self._known(value) or b"X" + struct.pack("<I", len(data)) + data + self.put(value)
        if isinstance(value, tuple):
            return b"".join(map(self.one, value)) + {1: b"\x85", 2: b"\x86", 3: b"\x87"}[len(value)]
        if isinstance(value, list):
            return b"](" + b"".join(map(self.one, value)) + b"e"
        frame = tuple(value.items()) if set(value) == {"name", "filename", "line"} else None
        if frame is not None and (known := self._known(frame)):
            return known
        written = b"}(" + b"".join(self.one(part) for pair in value.items() for part in pair) + b"u"
        return written + (self.put(frame) if frame is not None else b"")

    def _known(self, value: Any) -> bytes:
        place = self._places.get(value)
        if place is None:
            return b""
        return b"h" + bytes([place]) if place < 256 else b"j" + struct.pack("<I", place)

    def put(self, value: Any) -> bytes:
        place = self._places[value] = len(self._places)
        return b"q" + bytes([place]) if place < 256 else b"r" + struct.pack("<I", place)


def _number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)
