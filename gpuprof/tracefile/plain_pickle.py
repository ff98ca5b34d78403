"""Loads pickles of plain data: dicts, lists, tuples, numbers and strings, and nothing else.

A pickle can name functions and have them called. Plain data needs none, so that any name at all is refused, and nothing
that a file asks for is ever imported or run. Nor can it ask for more memory than in proportion to its size.
"""

from __future__ import annotations

import gc
import io
import pickle
from typing import Any, NoReturn

import numpy as np

from gpuprof.tracefile.compiled import compiled

_DAMAGE = (
    pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError,
    MemoryError, RecursionError, SystemError,
)  # fmt: skip


class NamesAGlobal(Exception):
    """The pickle asks for a class or a function."""


class Damaged(Exception):
    """The pickle is cut off, or no pickle of plain data."""


_ONE_BYTE, _FOUR_BYTES, _EIGHT_BYTES, _LINE, _TWO_LINES, _REFUSED = 101, 104, 108, 110, 111, 120
"""What follows an instruction whose arguments vary in size: a length of 1, 4 or 8 bytes with that number of bytes after
it, or text to the end of a line or two."""


def _arguments() -> np.ndarray:
    """Per instruction what follows it."""
    found = np.full(256, _REFUSED, np.int64)
    for codes, what in (
        (b"(.NQRabdelostu}])\x81\x85\x86\x87\x88\x89\x92\x93\x94\x97\x98", 0), (b"Khq\x80\x82", 1), (b"M\x83", 2),
        (b"Jjr\x84", 4), (b"G\x95", 8), (b"U\x8aC\x8c", _ONE_BYTE), (b"TX\x8bB", _FOUR_BYTES),
        (b"\x8d\x8e\x96", _EIGHT_BYTES), (b"FILSVgP", _LINE), (b"ci", _TWO_LINES),
    ):  # fmt: skip
        found[list(codes)] = what
    return found


_ARGUMENTS = _arguments()


@compiled
def _is_bounded(data, arguments):  # pragma: no cover - compiled
    """Whether loading takes memory in proportion to the pickle: 0 where it names a place of the memo past its own
    size, is cut off, or has an instruction that plain data does not need (sets, copies of the stack's top, places of
    the memo as text)."""
    at, size = 0, len(data)
    while at < size:
        code = data[at]
        kind = arguments[code]
        at += 1
        if code == 46:  # stop
            return 1
        length = 0
        if kind == 120:
            return 0
        if kind == 101 or kind == 104 or kind == 108:
            wide = kind - 100
            if at + wide > size:
                return 0
            for i in range(wide):
                if i > 5 and data[at + i] != 0:
                    return 0
                if i <= 5:
                    length += np.int64(data[at + i]) << (8 * i)
            at += wide + length
        elif kind == 110 or kind == 111:
            for _ in range(kind - 109):
                while at < size and data[at] != 10:
                    at += 1
                at += 1
        else:
            if code == 114:  # a place of the memo in four bytes
                if at + 4 > size:
                    return 0
                for i in range(4):
                    length += np.int64(data[at + i]) << (8 * i)
                if length > size:
                    return 0
            at += kind
    return 0


class _Bytes(io.BytesIO):
    """A file whose bytes can be looked at. Without that pickle's C code calls `read` for every instruction, which takes
    three times as long."""

    def peek(self, size: int) -> bytes:
        at = self.tell()
        return self.getbuffer()[at : at + size].tobytes()


class _Plain(pickle.Unpickler):
    """An unpickler without globals."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise NamesAGlobal(f"{module}.{name}"[:80])

    def persistent_load(self, pid: Any) -> NoReturn:
        raise NamesAGlobal("a persistent id")


def loads(data: bytes) -> Any:
    """What a pickle of plain data holds. Raises NamesAGlobal and Damaged."""
    collects = gc.isenabled()
    gc.disable()  # nothing becomes garbage here, and looking for it takes longer than loading
    try:
        if not _is_bounded(np.frombuffer(data, np.uint8), _ARGUMENTS):
            raise Damaged
        return _Plain(_Bytes(data)).load()
    except _DAMAGE:
        raise Damaged from None
    finally:
        if collects:
            gc.enable()
