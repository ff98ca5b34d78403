"""The text of a trace file as a stream: plain or gzip, whole, cut short, damaged, or a bomb."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from gpuprof.errors import UnreadableTrace
from gpuprof.runfile import open_regular
from gpuprof.units import Assumed, Bytes, Times

GZIP_MAGIC = b"\x1f\x8b"
DAMAGED = "the gzip data is damaged"
CUT = "the gzip data ends early"

# isal's hints call its error an instance.
INFLATE_ERRORS: Any = (isal_zlib.error, zlib.error)

BOMB_BYTES: Assumed[Bytes] = 64 << 20
BOMB_RATIO: Assumed[Times] = 150
"""Profiler traces compress by 10 to 60 times, one endlessly repeated event by a thousand. Beyond BOMB_BYTES of text, a
file with a ratio above this is not a recording, and reading it could fill any memory."""

_READ_BYTES: Assumed[Bytes] = 32 << 10
_PIECE_BYTES: Assumed[Bytes] = 512 << 10
INPUT_BYTES: Assumed[Bytes] = 1 << 10
"""Bytes inflated at a time: the output fits the CPU's cache, and is what is lost where damage begins."""


class Text:
    """The text of a file in order. `truncated` says why it ended early, if it did."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("rb", buffering=_READ_BYTES)
        self._again: list[memoryview] = []
        self.truncated: str | None = None
        self.text_bytes = 0

    def fill(self, buffer: NDArray[np.uint8]) -> int:
        """Fills a buffer from the text; returns the number of bytes."""
        filled = 0
        while filled < len(buffer):
            if self._again:
                piece = self._again.pop()
                count = min(len(piece), len(buffer) - filled)
                buffer[filled : filled + count] = np.frombuffer(piece, np.uint8, count)
                if count < len(piece):
                    self._again.append(piece[count:])
            else:
                count = self._read(buffer[filled:])
                self.text_bytes += count
            if not count:
                break
            filled += count
        return filled

    def unread(self, text: bytes) -> None:
        """Puts text back, to be read again."""
        if text:
            self._again.append(memoryview(text))

    def done_bytes(self) -> int:
        """Bytes of the file read so far."""
        return self._file.tell()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _read(self, buffer: NDArray[np.uint8]) -> int:
        return self._file.readinto(buffer.data)  # type: ignore[attr-defined]


class GzipText(Text):
    """The same for a gzip file of one or more members; what follows the last one is ignored."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._member: isal_zlib.Decompress | None = isal_zlib.decompressobj(wbits=31)
        self._input = b""

    def done_bytes(self) -> int:
        """Bytes of the file read so far."""
        return self._file.tell() - len(self._input)

    def _read(self, buffer: NDArray[np.uint8]) -> int:
        while self._member is not None:
            self._input = self._input or self._file.read(INPUT_BYTES)
            nothing = not self._input
            try:
                piece = self._member.decompress(self._input, min(len(buffer), _PIECE_BYTES))
            except INFLATE_ERRORS:
                self._end(DAMAGED)
                break
            self._input = self._member.unconsumed_tail
            if self._member.eof:
                self._next_member(self._member.unused_data)
            elif nothing and not piece:  # also called without input, for text that the decompressor still holds
                self._end(CUT)
            if piece:
                self._refuse_bomb(len(piece))
                buffer[: len(piece)] = np.frombuffer(piece, np.uint8)
                return len(piece)
        return 0

    def _next_member(self, rest: bytes) -> None:
        rest = rest.lstrip(b"\0")
        while len(rest) < 2:
            more = self._file.read(INPUT_BYTES)
            if not more:
                break
            rest = (rest + more).lstrip(b"\0")
        self._member = isal_zlib.decompressobj(wbits=31) if rest.startswith(GZIP_MAGIC) else None
        self._input = rest

    def _refuse_bomb(self, piece_bytes: int) -> None:
        text_bytes = self.text_bytes + piece_bytes
        if text_bytes > BOMB_BYTES and text_bytes > BOMB_RATIO * self.done_bytes():
            raise UnreadableTrace(f"it unpacks to more than {BOMB_RATIO} times its size, as no recording does")

    def _end(self, reason: str) -> None:
        self._member = None
        self.truncated = reason


def open_text(path: Path) -> Text:
    """The text of a file, plain or gzip by its first bytes."""
    with open_regular(path) as file:
        packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    return GzipText(path) if packed else Text(path)
