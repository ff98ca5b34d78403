"""Picks between the two readers of Kineto text: `msgspec_reader` reads short documents that are valid JSON.
`stream` reads all others, long or damaged: only `scan` decides where reading continues after damage.
"""

from __future__ import annotations

import re
from pathlib import Path

from isal import isal_zlib

from gpuprof.errors import UnreadableTrace
from gpuprof.runfile import open_regular
from gpuprof.tracefile.kineto.build import build
from gpuprof.tracefile.kineto.envelope import NeedMore, find_events
from gpuprof.tracefile.kineto.msgspec_reader import Parsed, read_small
from gpuprof.tracefile.kineto.source import CUT, DAMAGED, INFLATE_ERRORS, INPUT_BYTES
from gpuprof.tracefile.trace import Trace
from gpuprof.units import Assumed, Bytes

SHORT_DOCUMENT_BYTES: Assumed[Bytes] = 4 << 20
"""Text up to this size is read by msgspec, which finishes before the other reader would be loaded."""
SMALL_UNCOMPILED_BYTES: Assumed[Bytes] = 100 << 20
"""The same if the other reader would have to be compiled first, for all texts that were read on this machine so far
together. Compiling takes 6 s, and saves 2.5 s of each 60 MB that are read afterwards: who has one trace does not wait
for it, who has more does so once."""


def read_kineto(path: Path, size: int, progress=None, small_bytes: int | None = None) -> Trace:
    """The Trace in a Kineto file of `size` bytes. `small_bytes`: the longest text that is read by msgspec; by default
    that depends on whether the other reader is compiled."""
    data, truncated = _small_text(path, size) if small_bytes is None else _whole_text(path, size, small_bytes)
    try:
        parsed = None if data is None or truncated else read_small(data)
        if parsed is None:
            if data is not None:
                find_events(data)  # a file without events is refused before anything is compiled
            parsed = _streamed(path, size, progress)
        trace = build(parsed, str(path), size)
    except NeedMore:
        why = truncated or "the export did not finish"
        raise UnreadableTrace(f"{path} ends before its first event: {why}, record again") from None
    except UnreadableTrace as error:
        raise UnreadableTrace(f"{path} is not a profiler trace: {error}") from None
    if trace.reading.dropped and not trace.reading.events:
        raise UnreadableTrace(f"{path} is not a profiler trace: nothing in its list is an event with a time")
    return trace


def _small_text(path: Path, size: int) -> tuple[bytes | None, str | None]:
    """The text of a file for msgspec, and why it ends early if it does; (None, …) for all others."""
    data, truncated = _whole_text(path, size, SHORT_DOCUMENT_BYTES)
    if data is not None or _is_compiled():
        return data, truncated
    from gpuprof.tracefile.kineto.scan import note_uncompiled, uncompiled_bytes

    before = uncompiled_bytes()
    data, truncated = _whole_text(path, size, max(SMALL_UNCOMPILED_BYTES - before, 0))
    if data is not None:
        note_uncompiled(before + len(data))
    return data, truncated


def _is_compiled() -> bool:
    from gpuprof.tracefile.kineto.scan import is_compiled

    return is_compiled()


def _streamed(path: Path, size: int, progress) -> Parsed:
    from gpuprof.tracefile.kineto.stream import read_stream

    return read_stream(path, size, progress)


def _whole_text(path: Path, size: int, limit: int) -> tuple[bytes | None, str | None]:
    """The text of a small file and why it ends early if it does; None in its place when it is longer than `limit`."""
    with open_regular(path) as file:
        if file.read(2) != b"\x1f\x8b":
            file.seek(0)
            return (file.read(), None) if size <= limit else (None, None)
        if size > limit:
            return None, None
        file.seek(0)
        return _inflate(file.read(), limit)


_PADDING = re.compile(rb"\0*")


def _inflate(data: bytes, limit: int) -> tuple[bytes | None, str | None]:
    """The text of gzip members, up to a cut or damage; None when longer than `limit`."""
    parts, total, at = [], 0, 0
    while data.startswith(b"\x1f\x8b", at):
        member = isal_zlib.decompressobj(wbits=31)
        while not member.eof and at < len(data):
            piece = data[at : at + INPUT_BYTES]
            try:
                parts.append(member.decompress(piece, limit - total + 1))
            except INFLATE_ERRORS:
                return b"".join(parts), DAMAGED
            at += len(piece)
            total += len(parts[-1])
            if total > limit:
                return None, None
        if not member.eof:
            return b"".join(parts), CUT
        at -= len(member.unused_data)
        padding = _PADDING.match(data, at)
        at = padding.end() if padding else at
    return b"".join(parts), None
