"""Reads the Python stacks of another process's threads out of its memory, while it runs.
The process that is read executes nothing for it: no lock is taken, no signal is sent, and a wrong read cannot crash it.
(The timer of `faulthandler` walks the same frames inside the process: with it, a program that creates and drops frames
quickly crashed within 25 s on Python 3.10, 3.11, 3.12 and 3.13.)

Reading a stack takes about ten microseconds, while the thread keeps running. Frames of functions that return meanwhile
may be misread; a stack that makes no sense is read again, and then given up.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import struct
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from .frame_layout import BYTES_OF_HEADER, LENGTH_OF_BYTES, LENGTH_OF_TEXT, STATE_OF_TEXT, TYPE_AT, Layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Bytes, Convention, Count, Entries, Levels, Published, Threads


DEEPEST: Convention[Levels] = 400
"""Most frames of a stack; a deeper one is cut at its outer end."""
PAGE_BYTES: Published[Bytes] = 4096
PAGES_AT_ONCE: Convention[Entries] = 4
"""Memory pages read at once, down from the innermost frame: frames of nested calls are adjacent."""
BLOCK_BYTES = PAGE_BYTES * PAGES_AT_ONCE
LONGEST_TEXT: Assumed[Bytes] = 4096
LONGEST_TABLE: Assumed[Bytes] = 1 << 20
INTERPRETER: Published[Count] = 3
"""Owner of a frame that the interpreter pushes for itself."""
MOST_THREADS: Assumed[Threads] = 4096
LOWEST_ADDRESS: Published[Bytes] = 1 << 12
HIGHEST_ADDRESS: Published[Bytes] = 1 << 63
"""Addresses outside of this range are not valid in user space."""


class Unreadable(Exception):
    """The memory cannot be read, or what was read makes no sense."""


_template = (lambda: 0).__code__
"""Some code object."""


class _Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


_ZERO, _ONE, _PAGES_ = ctypes.c_ulong(0), ctypes.c_ulong(1), ctypes.c_ulong(PAGES_AT_ONCE)


class ProcessMemory:
    """The memory of a process. Reading needs the right to trace it."""

    def __init__(self, pid: int) -> None:
        self._call = ctypes.CDLL(None, use_errno=True).process_vm_readv
        self._call.restype = ctypes.c_ssize_t
        self._buffer = ctypes.create_string_buffer(BLOCK_BYTES)
        self._here = _Span(ctypes.addressof(self._buffer), 0)
        self._there = _Span(0, 0)
        self._pid = ctypes.c_int(pid)
        self._pages = (_Span * PAGES_AT_ONCE)(), (_Span * PAGES_AT_ONCE)()
        self._refs = (ctypes.byref(self._here), ctypes.byref(self._there))

    def read(self, address: int, count: int) -> bytes:
        """`count` bytes. Raises Unreadable, ProcessLookupError when the process is gone, PermissionError."""
        if count > BLOCK_BYTES:
            parts = range(0, count, BLOCK_BYTES)
            return b"".join(self.read(address + at, min(BLOCK_BYTES, count - at)) for at in parts)
        if not LOWEST_ADDRESS < address < HIGHEST_ADDRESS:
            raise Unreadable
        self._here.length = self._there.length = count
        self._there.base = address
        if self._call(self._pid, self._refs[0], _ONE, self._refs[1], _ONE, _ZERO) == count:
            return ctypes.string_at(self._buffer, count)
        raise self._error()

    def below(self, end: int) -> tuple[int, bytes]:
        """(start address, bytes) of up to PAGES_AT_ONCE pages before an address, as far as they are mapped. Raises as
        `read`."""
        if not LOWEST_ADDRESS < end < HIGHEST_ADDRESS:
            raise Unreadable
        last = end - 1 & -PAGE_BYTES
        here, there = self._pages
        base = ctypes.addressof(self._buffer)
        for i in range(PAGES_AT_ONCE):
            there[i].base, there[i].length = last - i * PAGE_BYTES, PAGE_BYTES if i else end - last
            here[i].base, here[i].length = base + BLOCK_BYTES - (i + 1) * PAGE_BYTES, there[i].length
        count = self._call(self._pid, here, _PAGES_, there, _PAGES_, _ZERO)
        if count < end - last:
            raise self._error()
        pages = (count - (end - last)) // PAGE_BYTES
        start = BLOCK_BYTES - (pages + 1) * PAGE_BYTES
        return last - pages * PAGE_BYTES, ctypes.string_at(base + start, pages * PAGE_BYTES + end - last)

    def _error(self) -> Exception:
        number = ctypes.get_errno()
        error = OSError(number, os.strerror(number))
        return error if isinstance(error, ProcessLookupError | PermissionError) else Unreadable()

    def pointer(self, address: int) -> int:
        """The eight bytes there, as an address."""
        return _POINTER.unpack_from(self.read(address, 8))[0]


_POINTER = struct.Struct("<Q")
_INT = struct.Struct("<i")


class CodeDescription(NamedTuple):
    """A function, as its code object describes it."""

    file: str
    name: str
    first_line: int


class StackReader:
    """The stacks of one process.

    code_type: address of the code objects' type in that process, by which code objects are recognised.
    """

    def __init__(self, memory: ProcessMemory, layout: Layout, code_type: int) -> None:
        self._memory, self._layout, self._code_type = memory, layout, code_type
        self._codes: dict[int, tuple[CodeDescription, list[int], list[int]]] = {}
        self._instructions = type(_template).__basicsize__

    def of_fork(self, memory: ProcessMemory) -> StackReader:
        """For a process forked from this one, in which Python has the same addresses."""
        return StackReader(memory, self._layout, self._code_type)

    # -- stacks

    def stack(self, thread: int) -> list[tuple[CodeDescription, int]]:
        """(function, line) from the innermost to the outermost call of a thread; empty where it runs no Python.

        thread: address of its state. Raises Unreadable and what `Memory.read` raises.
        """
        return [self.place(code, at) for code, at in self.known(self.frames(thread))]

    def frames(self, thread: int) -> list[tuple[int, int]]:
        """(address of the code, offset of the instruction in bytes) of each frame, innermost first."""
        memory, layout = self._memory, self._layout
        frame = memory.pointer(thread + layout.frame_in_thread)
        if layout.frame_in_c_frame is not None and frame:
            frame = memory.pointer(frame + layout.frame_in_c_frame)
        found: list[tuple[int, int]] = []
        if not frame:
            return found
        objects, size = layout.frames_are_objects, layout.frame_bytes
        block, low, high = b"", 0, 0
        if not objects:
            high = frame + size
            low, block = memory.below(high)
        pointer, number = _POINTER.unpack_from, _INT.unpack_from
        for _ in range(4 * DEEPEST):
            if low <= frame <= high - size:
                data, at = block, frame - low
            else:
                data, at = memory.read(frame, size), 0
            code = pointer(data, at + layout.code)[0]
            if layout.owner is None or data[at + layout.owner] != INTERPRETER:
                if objects:
                    found.append((code, number(data, at + layout.instruction)[0] * 2))
                else:
                    found.append((code, pointer(data, at + layout.instruction)[0] - code - self._instructions))
                if len(found) == DEEPEST:
                    return found
            frame = pointer(data, at + layout.previous)[0]
            if not frame:
                return found
        raise Unreadable

    # -- threads

    def threads(self, thread: int) -> list[tuple[int, int]]:
        """(address of its state, the system's number) of every thread; 0 for the number in Python 3.10."""
        found: list[tuple[int, int]] = []
        for link in (0, 8):
            at = thread if link else self._memory.pointer(thread)
            while at and len(found) < MOST_THREADS:
                number = 0
                if not self._layout.frames_are_objects:
                    number = self._memory.pointer(at + self._layout.ident_in_thread + 8)
                found.append((at, number))
                at = self._memory.pointer(at + link)
        return found

    # -- code objects

    def known(self, frames: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The frames whose functions have source code. Reads code objects that are not known yet, which may be gone
        later. Raises Unreadable."""
        found = []
        for frame in frames:
            code = frame[0]
            if code not in self._codes:
                self._codes[code] = self._read_code(code)
            described = self._codes[code][0]
            # Python 3.13 puts an extra frame between the call of a class and its __init__.
            if described.first_line > 0 or described.name != "__init__":
                found.append(frame)
        return found

    def place(self, code: int, at: int) -> tuple[CodeDescription, int]:
        """The function and the line of a frame that is known."""
        described, starts, lines = self._codes[code]
        place = bisect.bisect_right(starts, max(at, 0)) - 1
        return described, lines[place] if place >= 0 else described.first_line

    def _read_code(self, address: int) -> tuple[CodeDescription, list[int], list[int]]:
        """The function and its lines: from which offset on which line."""
        layout = self._layout
        head = self._memory.read(address, self._instructions)
        if _POINTER.unpack_from(head, TYPE_AT)[0] != self._code_type:
            raise Unreadable
        file, name, table = (
            _POINTER.unpack_from(head, at)[0] for at in (layout.filename, layout.name, layout.line_table)
        )
        first = _INT.unpack_from(head, layout.first_line)[0]
        described = CodeDescription(self._text(file), self._text(name), first)
        starts, lines = [], []
        for start, _, line in _lines(self._bytes(table), first):
            if line is not None:
                starts.append(start)
                lines.append(line)
        return described, starts, lines

    def _text(self, address: int) -> str:
        head = self._memory.read(address, STATE_OF_TEXT + 4)
        length = _POINTER.unpack_from(head, LENGTH_OF_TEXT)[0]
        state = _INT.unpack_from(head, STATE_OF_TEXT)[0]
        width, is_compact, is_ascii = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
        if not is_compact or width not in (1, 2, 4) or length > LONGEST_TEXT:
            raise Unreadable
        start = self._layout.text_of_ascii if is_ascii else self._layout.text_of_others
        data = self._memory.read(address + start, length * width) if length else b""
        return data.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width], "replace")

    def _bytes(self, address: int) -> bytes:
        length = _POINTER.unpack_from(self._memory.read(address, BYTES_OF_HEADER + 8), LENGTH_OF_BYTES)[0]
        if length > LONGEST_TABLE:
            raise Unreadable
        return self._memory.read(address + sys.getsizeof(b"") - 1, length) if length else b""


def _lines(table: bytes, first: int) -> list[tuple[int, int, int | None]]:
    """(start, end, line) of a line table: Python itself knows how to read it."""
    named: dict[str, Any] = {"co_linetable": table, "co_firstlineno": first}
    try:
        return list(_template.replace(**named).co_lines())
    except (ValueError, SystemError) as error:
        raise Unreadable from error
