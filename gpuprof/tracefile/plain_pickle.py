"""Loads pickles of plain data: dicts, lists, tuples, numbers and strings, and nothing else.

A pickle can name functions and have them called. Plain data needs none, so every name is refused, and nothing that a
file names is ever imported or run. Loading takes memory in proportion to the file's size at most.
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
    """The pickle is cut off, or is not a pickle of plain data."""


_ONE_BYTE, _FOUR_BYTES, _EIGHT_BYTES, _LINE, _TWO_LINES, _REFUSED = 101, 104, 108, 110, 111, 120
"""Codes for instructions with arguments of variable size: a length of 1, 4 or 8 bytes followed by that many bytes, or
one or two lines of text."""


def _arguments() -> np.ndarray:
    """For each instruction, the size or code of its arguments."""
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
    """Whether loading takes memory in proportion to the pickle: 0 if it uses a memo index beyond its own size, is cut
    off, or has an instruction that plain data does not need (sets, DUP, memo indices as text)."""
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
            if code == 114:  # a memo index in four bytes
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
    """The contents of a pickle of plain data. Raises NamesAGlobal and Damaged."""
    collects = gc.isenabled()
    gc.disable()  # no garbage is created here, and collecting would take longer than loading
    try:
        if not _is_bounded(np.frombuffer(data, np.uint8), _ARGUMENTS):
            raise Damaged
        return _Plain(_Bytes(data)).load()
    except _DAMAGE:
        raise Damaged from None
    finally:
        if collects:
            gc.enable()
