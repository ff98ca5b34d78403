"""A stream of text cut into blocks before events, each with room for the results of a scan."""

from __future__ import annotations

import threading

import numpy as np

from gpuprof.tracefile.kineto import layout, scan
from gpuprof.tracefile.kineto.envelope import LONGEST_EVENT_BYTES
from gpuprof.tracefile.kineto.source import Text
from gpuprof.tracefile.kineto.strings import decode


class Block:
    """Text between two cuts, and the results of scanning it. Blocks are reused: fresh memory is slow."""

    def __init__(self, plan: np.void) -> None:
        self._plan = plan
        self.text = np.zeros(scan.PADDING_BYTES, np.uint8)
        self.begin = 0
        """Where the scan began."""
        self.end = 0
        """Bytes of text; PADDING zeros follow."""
        self.number = -1
        self.after_cut = False
        """Whether the text begins at what looks like the start of an event."""
        self.cut = False
        """Whether the text ends before what looks like the start of an event."""
        self.done_bytes = 0
        """Bytes of the file that had been read when this block was filled."""
        self.status = scan.PAUSED
        self.sheet = np.zeros(1, scan.SHEET)[0]
        # No text has such bytes, so nothing is treated as known at first.
        self.sheet["joint"] = 0xFF
        self.sheet["joint_bits"] = -1
        self._make_rows(1 << 14)
        self._make_strings(1 << 13)
        self.odd = np.zeros((1 << 10, 2), np.int64)

    def reserve(self, size: int, keep: int = 0) -> None:
        """Makes room for `size` bytes of text; keeps only the first `keep` bytes of the old text."""
        if len(self.text) < size + scan.PADDING_BYTES:
            text = np.zeros(size + scan.PADDING_BYTES, np.uint8)
            text[:keep] = self.text[:keep]
            self.text = text

    def put(self, *parts: bytes) -> None:
        """Sets its text to these bytes."""
        self.end = sum(map(len, parts))
        self.reserve(self.end)
        at = 0
        for part in parts:
            self.text[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
        self.text[at : at + scan.PADDING_BYTES] = 0

    def bytes(self, begin: int, end: int) -> bytes:
        """A part of the text."""
        return self.text[begin:end].tobytes()

    def scan(self, at: int = 0, final: bool = False, distrust: bool = False) -> None:
        """Reads the events from `at` on, see `scan.scan`."""
        self.begin = at
        while True:
            self.status = scan.scan(
                self.text, at, self.end, self.cut, final, distrust,
                self._plan, self.sheet, self.rows, self.strings, self._places, self.odd,
            )  # fmt: skip
            if self.status == scan.NO_ROWS:
                self._make_rows(2 * int(self.sheet["capacity"].max()))
            elif self.status == scan.NO_STRINGS:
                self._make_strings(2 * len(self.strings))
            elif self.status == scan.NO_ODD:
                self.odd = np.zeros((2 * len(self.odd), 2), np.int64)
            else:
                return

    def rows_of(self, table: str) -> np.ndarray:
        """The rows that the scan found for a table."""
        index, dtype = layout.TABLES.index(table), layout.ROWS[table]
        begin = int(self.sheet["base"][index])
        return self.rows[begin : begin + int(self.sheet["count"][index]) * dtype.itemsize].view(dtype)

    def text_of(self, number: int) -> str:
        """The text that a row names by `number`."""
        begin, length, _ = self.strings[number].tolist()
        return decode(self.bytes(begin, begin + length // 2), bool(length & 1))[0]

    def _make_rows(self, count: int) -> None:
        sizes = self._plan["size"] * count + scan.ROW_BYTES
        self.sheet["capacity"] = count
        self.sheet["base"] = np.cumsum(sizes) - sizes
        self.rows = np.zeros(int(sizes.sum()), np.uint8)

    def _make_strings(self, count: int) -> None:
        self.strings = np.zeros(count, scan.STRING)
        self._places = np.full(2 * count, -1, np.int32)


class BlockScanner:
    """Fills blocks from a text, for several threads at once."""

    def __init__(self, text: Text, plan: np.void, block_bytes: int) -> None:
        self._text = text
        self._plan = plan
        self._block_bytes = block_bytes
        self._lock = threading.Lock()
        self._number = 0
        self._after_cut = False
        self._over = False

    def fill(self, block: Block) -> bool:
        """Puts the next text into a block; False when there is none left."""
        with self._lock:
            if self._over:
                return False
            size, have, cut = self._block_bytes, 0, scan.MORE
            while True:
                block.reserve(size, keep=have)
                have += self._text.fill(block.text[have:size])
                block.text[have : have + scan.PADDING_BYTES] = 0
                if have < size:
                    self._over = True
                    break
                cut = scan.find_separator(block.text, have - 1, 0, have, -1, self._plan)
                if cut > 0 or size >= LONGEST_EVENT_BYTES:
                    break
                size = min(2 * size, LONGEST_EVENT_BYTES)
            block.after_cut, block.cut = self._after_cut, cut > 0
            block.end = cut if block.cut else have
            self._text.unread(block.bytes(block.end, have))
            block.text[block.end : block.end + scan.PADDING_BYTES] = 0
            block.number, block.done_bytes = self._number, self._text.done_bytes()
            self._number += 1
            self._after_cut = block.cut
            return True
