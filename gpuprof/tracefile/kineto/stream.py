"""The reader for large traces: blocks of text, scanned by several threads, put together in the file's order.

A block is scanned before it is known whether its first byte begins an event. It does if the scan of the previous block
ends exactly at that block's end; if not, the rest of that block and this one are scanned again as one text.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from gpuprof.errors import UnreadableTrace
from gpuprof.tracefile.background import processors
from gpuprof.tracefile.kineto import layout, scan
from gpuprof.tracefile.kineto.blocks import Block, BlockScanner
from gpuprof.tracefile.kineto.columns import KinetoTables
from gpuprof.tracefile.kineto.envelope import (
    LONGEST_EVENT_BYTES,
    NeedMore,
    another_document,
    another_list,
    find_events,
    may_be_tail,
    object_end,
    parse_tail,
)
from gpuprof.tracefile.kineto.msgspec_reader import (
    NO_END,
    Parsed,
    StringIds,
    add_texts,
    drop,
    event_then_close,
    is_whole,
)
from gpuprof.tracefile.kineto.scan_plan import make_plan
from gpuprof.tracefile.kineto.source import Text, open_text
from gpuprof.tracefile.kineto.strings import StringTable
from gpuprof.tracefile.trace import NO_TEXT
from gpuprof.units import Assumed, Bytes, Entries, Events, Seconds, Threads

BLOCK_BYTES: Assumed[Bytes] = 4 << 20
BETWEEN = b" \t\r\n\0,"
"""Bytes that may be between two events."""
SAMPLE_BYTES: Assumed[Bytes] = 1 << 16
LAST_BYTES: Assumed[Bytes] = 8 << 20
"""Unread text at the end of the file that Python tries to read; takes a few seconds at worst."""
MOST_UNREADABLE: Assumed[Events] = 200_000
"""After this many unreadable events, and no readable one, reading is given up."""
MOST_FALSE_ENDS: Assumed[Entries] = 100
"""How many brackets that turn out not to end the list are handled: each costs a check of the text after it."""
MAX_WORKERS: Assumed[Threads] = 4
PROGRESS_S: Assumed[Seconds] = 0.1

Progress = Callable[[int, int], None]


class Distrust(Exception):
    """The scanner and the JSON parser read one event differently."""


def read_stream(path: Path, size: int, progress: Progress | None = None, block_bytes: int = BLOCK_BYTES) -> Parsed:
    """Reads the trace in a file of `size` bytes, in memory that grows with its events and not with its text."""
    compile_reader()
    try:
        return _read(path, size, progress, block_bytes, distrust=False)
    except Distrust:
        if os.environ.get("GPUPROF_DEBUG"):
            raise
        return _read(path, size, progress, block_bytes, distrust=True)


def _read(path: Path, size: int, progress: Progress | None, block_bytes: int, distrust: bool) -> Parsed:
    text = open_text(path)
    try:
        plan = make_plan()
        keys = _header(text, block_bytes)
        gathered = Gathered(keys, plan, size, distrust)
        crew = Crew(BlockScanner(text, plan, block_bytes), gathered, plan)
        crew.work(lambda: progress and progress(min(text.done_bytes(), size), size))
        parsed = gathered.finish(text.truncated)
        parsed.text_bytes = text.text_bytes
        return parsed
    finally:
        text.close()


def _header(text: Text, block_bytes: int) -> dict:
    """The keys before the event list; the text then goes on after its `[`."""
    head, size = b"", block_bytes
    while len(head) < LONGEST_EVENT_BYTES:
        buffer = np.empty(min(size, LONGEST_EVENT_BYTES) - len(head), np.uint8)
        count = text.fill(buffer)
        head += buffer[:count].tobytes()
        try:
            at, keys = find_events(head)
        except NeedMore:
            if count < len(buffer):
                raise
            size *= 8
            continue
        text.unread(head[at:])
        return keys
    raise UnreadableTrace(f"no events in its first {LONGEST_EVENT_BYTES >> 20} MB")


class Crew:
    """Threads that fill and scan blocks, and gather results in the file's order."""

    def __init__(self, blocks: BlockScanner, gathered: Gathered, plan: np.void) -> None:
        self._blocks = blocks
        self._gathered = gathered
        self._workers = min(_processors(), MAX_WORKERS)
        self._free = [Block(plan) for _ in range(self._workers + 2)]
        self._scanned: dict[int, Block] = {}
        self._next = 0
        self._gathering = False
        self._stopped = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def work(self, report: Callable[[], object]) -> None:
        """Works until the text is at its end, calling `report` now and then."""
        threads = [threading.Thread(target=self._run, daemon=True) for _ in range(self._workers)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(PROGRESS_S)
                    report()
        finally:
            self._stop()
            for thread in threads:
                thread.join()
        if self._failure:
            raise self._failure

    def _run(self) -> None:
        try:
            while block := self._take_free():
                if not self._blocks.fill(block):
                    break
                block.scan(distrust=self._gathered.distrust)
                self._hand_in(block)
        except BaseException as failure:  # raised again by the thread that waits
            self._failure = self._failure or failure
            self._stop()

    def _take_free(self) -> Block | None:
        with self._changed:
            while not self._free and not self._stopped:
                self._changed.wait()
            return None if self._stopped else self._free.pop()

    def _hand_in(self, block: Block) -> None:
        """Gathers this block if it is next in order, and those that wait for it; one thread at a time does that."""
        with self._changed:
            self._scanned[block.number] = block
            if self._gathering:
                return
            self._gathering = True
        while True:
            with self._changed:
                ready = self._scanned.pop(self._next, None)
                if ready is None or self._stopped:
                    self._gathering = False
                    return
            self._gathered.add(ready)
            if self._gathered.complete:
                self._stop()
            with self._changed:
                self._next += 1
                self._free.append(ready)
                self._changed.notify_all()

    def _stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class Gathered:
    """The results up to some place in the file."""

    def __init__(self, keys: dict, plan: np.void, size: int, distrust: bool) -> None:
        self.distrust = distrust
        self.complete = False
        """Whether the rest of the file is not needed."""
        self._plan = plan
        self._size = size
        self._tables = KinetoTables()
        self._strings = StringTable()
        # The events that Python reads; their texts are numbered separately until the end.
        self._odd = Parsed(tables=KinetoTables(), strings=StringIds(), keys=keys)
        self._odd.reader = "stream, event by event" if distrust else "stream"
        self._joined = Block(plan)
        self._left = b""
        """Text of an event that did not end in the blocks so far."""
        self._lost = False
        """Whether the next event has to be searched for, because one that was too long was given up."""
        self._tail: bytes | None = None
        """What follows the event list, once that has ended."""
        self._false_ends = 0

    def add(self, block: Block) -> None:
        """Adds the next block of the file, already scanned."""
        if self._tail is not None:
            self._join(self._tail, block)
            self._end_or_read_on(self._joined, 0)
        elif self._left:
            self._join(self._left, block)
            final = self._joined.end > LONGEST_EVENT_BYTES
            self._joined.scan(final=final, distrust=self.distrust)
            self._take(self._joined, final)
        elif self._lost and not block.after_cut:
            at = scan.find_separator(block.text, 0, 0, block.end, 1, self._plan)
            if at >= 0:
                block.scan(at, distrust=self.distrust)
                self._take(block)
        else:
            self._take(block)

    def finish(self, truncated: str | None) -> Parsed:
        """The complete result, at the end of the text. `truncated`: why the text ended early, or None."""
        parsed = self._odd
        parsed.truncated = truncated
        if self._tail is None:
            self._joined.put(self._left)
            self._joined.cut = False
            self._joined.scan(final=True, distrust=self.distrust)
            self._take(self._joined, final=True)
        if self._tail is None:
            self._end_list(self._left.strip(BETWEEN))
        if self._tail is not None:
            parsed.keys |= parse_tail(self._tail)
            if another_document(self._tail):
                parsed.more = "document"
        texts = self._texts()
        return dataclasses.replace(parsed, tables=self._tables, strings=texts)

    def _join(self, before: bytes, block: Block) -> None:
        """Joins a block with the text left over before it."""
        self._joined.put(before, block.bytes(0, block.end))
        self._joined.cut, self._joined.done_bytes = block.cut, block.done_bytes

    def _take(self, block: Block, final: bool = False) -> None:
        """Takes over the results of a block's scan, and its unread rest. `final`: no more text comes."""
        self._lost = False
        self._keep(block)
        if block.status == scan.ENDED:
            self._end_or_read_on(block, int(block.sheet["position"]), final)
        else:
            self._leave(block)

    def _end_or_read_on(self, block: Block, at: int, final: bool = False) -> None:
        """Takes the text from `at`, after a `]`, as the document's tail. If it cannot be that, for example because the
        file contains its head twice and the `]` ends a list in the head, reading continues at the next event."""
        while True:
            tail = block.bytes(at, block.end)
            event = scan.find_separator(block.text, at, at, block.end, 1, self._plan)
            if event < 0 or self._false_ends == MOST_FALSE_ENDS or may_be_tail(tail):
                self._tail, self._left = tail, b""
                self.complete = len(tail) > LONGEST_EVENT_BYTES
                return
            self._false_ends += 1
            if another_list(tail[: event - at]):
                self._odd.more = "list"
            else:
                drop(self._odd, tail[:200].decode("utf-8", "replace"))
            self._tail = None
            block.scan(event, final, self.distrust)
            self._keep(block)
            if block.status != scan.ENDED:
                self._leave(block)
                return
            at = int(block.sheet["position"])

    def _keep(self, block: Block) -> None:
        """Takes over the events that the scan of a block found."""
        if not self.distrust:
            self._check(block)
        numbers = self._strings.add(block.text, block.strings, int(block.sheet["strings"]))
        for table in layout.TABLES:
            rows = block.rows_of(table)
            if len(rows):
                self._tables[table].add(rows, len(rows), numbers, block.done_bytes / self._size)
        odd = block.odd[: block.sheet["odd"]].tolist()
        add_texts((block.bytes(begin, end).strip(BETWEEN) for begin, end in odd), self._odd)
        self._odd.rounded += int(block.sheet["rounded"])
        self._odd.repaired += int(block.sheet["repaired"])
        if block.sheet["dropped"]:
            at = int(block.sheet["sample"])
            drop(self._odd, block.bytes(at, min(at + 200, block.end)).decode("utf-8", "replace"))
            self._odd.dropped += int(block.sheet["dropped"]) - 1
        if self._odd.dropped > MOST_UNREADABLE and not self._kept():
            raise UnreadableTrace(f"of the first {self._odd.dropped:,} events in its list none can be read")

    def _leave(self, block: Block) -> None:
        """Keeps the text of an event that does not end in the block, to be read with the next block."""
        rest = block.bytes(int(block.sheet["position"]), block.end)
        if len(rest) <= LONGEST_EVENT_BYTES:
            self._left = rest
        else:
            self._left, self._lost = b"", True
            drop(self._odd, rest[:200].decode("utf-8", "replace"))

    def _kept(self) -> int:
        return sum(table.count for table in (*self._tables.values(), *self._odd.tables.values()))

    def _check(self, block: Block) -> None:
        """Compares the first event of a block with the JSON parser's result."""
        at = block.begin
        data = block.bytes(at, min(at + SAMPLE_BYTES, block.end))
        at += len(data) - len(data.lstrip(BETWEEN))
        data = data.lstrip(BETWEEN)
        end = object_end(data) if data.startswith(b"{") else None
        if end is None or block.sheet["position"] <= at or (block.sheet["odd"] and block.odd[0, 0] == at):
            return  # unfinished, or not the scanner's to read
        sample = Parsed(tables=KinetoTables(), strings=StringIds(), keys={})
        add_texts([data[:end]], sample)
        texts = list(sample.strings)
        for table, growing in sample.tables.items():
            if growing.count and not sample.repaired:
                rows = block.rows_of(table)
                for name, column in growing.take().items():
                    expected, found = column[0], rows[name][0] if len(rows) else None
                    if name in layout.TEXT_FIELDS and found is not None and found >= 0 and expected >= 0:
                        expected, found = texts[expected], block.text_of(int(found))
                    if found != expected and not (found != found and expected != expected):
                        raise Distrust(f"{name} is {expected!r}, not {found!r}: {data[:end]!r}")

    def _end_list(self, rest: bytes) -> None:
        """Handles the text after the last event that was read: a broken event, the end of the list, or nothing."""
        end = event_then_close(rest) if len(rest) <= LAST_BYTES else None
        if end is None:
            self._odd.truncated = self._odd.truncated or NO_END
            if len(rest) <= LAST_BYTES:
                # A complete event may precede the cut one.
                whole = rest if is_whole(rest) else rest[: object_end(rest) or 0]
                add_texts([whole] if whole else [], self._odd)
        else:
            add_texts([rest[:end]] if end else [], self._odd)
            self._tail = rest[end:].lstrip(BETWEEN)[1:]

    def _texts(self) -> list[str]:
        """All texts by number, each once; adds the events read by Python to the others."""
        texts, mended, escapes = self._strings.decode()
        if mended:
            flags = np.zeros(len(texts) + 1, bool)
            flags[mended] = True
            self._odd.repaired += sum(table.rows_with(flags) for table in self._tables.values())
            # One event may have been mended in two ways.
            self._odd.repaired = min(self._odd.repaired, self._kept())
        if not escapes and not self._odd.strings:
            return texts
        ids = StringIds()
        numbers = np.array([*(ids[text] for text in texts), NO_TEXT], np.int32)
        if len(ids) < len(texts):
            for table in self._tables.values():
                table.renumber(numbers)
        numbers = np.array([*(ids[text] for text in self._odd.strings), NO_TEXT], np.int32)
        for name, odd in self._odd.tables.items():
            self._tables[name].add(odd.take(), odd.count, numbers)
        return list(ids)


def _processors() -> int:
    """Threads to read with: one per available CPU, or fewer if numba is configured so."""
    wanted = os.environ.get("NUMBA_NUM_THREADS", "")
    return min(processors(), int(wanted)) if wanted.isdecimal() else processors()


@cache
def compile_reader() -> None:
    """Compiles the kernels, or loads them, before any thread needs them."""
    if not scan.is_compiled():
        print("gpuprof: compiling the trace reader (once, some seconds) …", file=sys.stderr, flush=True)
    _run_once()


def _run_once() -> None:
    block = Block(make_plan())
    block.put(b"[")
    block.scan()
    StringTable().add(block.text, block.strings, 0)
    scan.find_separator(block.text, 0, 0, 0, 1, make_plan())
