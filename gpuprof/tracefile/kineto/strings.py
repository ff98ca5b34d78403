"""The strings of a file while it is scanned: raw bytes, each text once."""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpuprof.tracefile.kineto import scan
from gpuprof.tracefile.kineto.repair import mended_string
from gpuprof.tracefile.trace import NO_TEXT
from gpuprof.units import Assumed, Entries

_CONTROL = re.compile(rb"[\x00-\x1f]")
_AT_ONCE: Assumed[Entries] = 1 << 14
_decode = msgspec.json.Decoder(str).decode


class StringTable:
    """Numbers for texts, in order of first sight."""

    def __init__(self) -> None:
        self._arena = np.zeros(1 << 20, np.uint8)
        self._table = np.zeros(1 << 14, scan.STRING)
        self._places = np.full(1 << 15, -1, np.int32)
        self._used = np.zeros(3, np.int64)

    def add(self, text: NDArray[np.uint8], strings: NDArray, count: int) -> NDArray[np.int32]:
        """The numbers of the strings of a block, followed by NO_TEXT."""
        numbers = np.empty(count + 1, np.int32)
        numbers[count] = NO_TEXT
        done = 0
        while True:
            done = scan.merge(text, strings, done, count, self._arena, self._table, self._places, self._used, numbers)
            if done == count:
                return numbers
            self._grow(int(strings[done]["length"]) // 2)

    def decode(self) -> tuple[list[str], list[int], bool]:
        """(all texts, numbers of those that were not valid JSON, whether any had escapes or was mended).
        Only in the last case can two of the texts be equal.
        """
        count, size, _ = self._used.tolist()
        data = self._arena[:size].tobytes()
        escapes = bool(np.any(self._table["length"][:count] & 1))
        simple = not escapes and data.isascii() and not _CONTROL.search(data)
        plain = data.decode("ascii") if simple else ""
        texts, mended = [], []
        for first in range(0, count, _AT_ONCE):
            for begin, length, _ in self._table[first : min(first + _AT_ONCE, count)].tolist():
                if simple:
                    texts.append(plain[begin : begin + length // 2])
                    continue
                text, whole = decode(data[begin : begin + length // 2], bool(length & 1))
                if not whole:
                    mended.append(len(texts))
                texts.append(text)
        return texts, mended, escapes or bool(mended)

    def _grow(self, size: int) -> None:
        count, used, _ = self._used.tolist()
        if count >= len(self._table):
            self._table = np.concatenate([self._table, np.zeros(len(self._table), scan.STRING)])
            self._places = np.full(4 * len(self._table), -1, np.int32)
            self._used[2] = 0
        else:
            arena = np.zeros(max(2 * len(self._arena), used + size + scan.PADDING_BYTES), np.uint8)
            arena[:used] = self._arena[:used]
            self._arena = arena


def decode(data: bytes, escaped: bool) -> tuple[str, bool]:
    """The text written as `data` between quotes (or as raw JSON), and whether it was valid."""
    try:
        text, whole = data.decode(), True
    except UnicodeDecodeError:
        text, whole = data.decode("utf-8", "replace"), False
    # In raw JSON a line break is a space between two values.
    whole = whole and (data[:1] in (b"[", b"{") or not _CONTROL.search(data))
    if escaped:
        quoted = f'"{text}"'
        try:
            text = _decode(quoted)
        except msgspec.DecodeError:
            try:
                text, whole = _decode(mended_string(quoted)), False
            except msgspec.DecodeError:
                whole = False  # half of a surrogate pair: shown as it stands
    return text, whole
