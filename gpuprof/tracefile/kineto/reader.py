"""Picks between the two readers of Kineto text by its size."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from isal import isal_zlib

from gpuprof.errors import UnreadableTrace
from gpuprof.tracefile.kineto.build import build
from gpuprof.tracefile.kineto.envelope import NeedMore
from gpuprof.tracefile.kineto.small import Parsed, read_small
from gpuprof.tracefile.kineto.source import INFLATE_ERRORS
from gpuprof.tracefile.model import Trace

SMALL_BYTES = 25 << 20
"""Text up to this long is read by msgspec: it is done in the time that numba takes to load."""


def read_kineto(path: Path, size: int, progress=None, small_bytes: int = SMALL_BYTES) -> Trace:
    """The Trace in a Kineto file of `size` bytes."""
    data, truncated = _whole_text(path, size, small_bytes)
    try:
        parsed = _streamed(path, size, progress) if data is None else read_small(data, truncated)
        trace = build(parsed, str(path), size)
        if data is not None and parsed.damaged and parsed.dropped:
            # Cutting a document at its separators loses what is next to damage; the other reader goes on after it. Of a
            # damaged gzip file either may get further.
            with suppress(NeedMore, UnreadableTrace):
                other = build(_streamed(path, size, progress), str(path), size)
                trace = other if other.reading.events > trace.reading.events else trace
    except NeedMore:
        why = truncated or "the export did not finish"
        raise UnreadableTrace(f"{path} ends before its first event: {why}, record again") from None
    except UnreadableTrace as error:
        raise UnreadableTrace(f"{path} is not a profiler trace: {error}") from None
    if trace.reading.dropped and not trace.reading.events:
        raise UnreadableTrace(f"{path} is not a profiler trace: nothing in its list is an event with a time")
    return trace


def _streamed(path: Path, size: int, progress) -> Parsed:
    from gpuprof.tracefile.kineto.stream import read_stream  # loads numba

    return read_stream(path, size, progress)


def _whole_text(path: Path, size: int, limit: int) -> tuple[bytes | None, str | None]:
    """The text of a small file and why it ends early if it does; None in its place when it is longer than `limit`."""
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            file.seek(0)
            return (file.read(), None) if size <= limit else (None, None)
        if size > limit:
            return None, None
        file.seek(0)
        return _inflate(file.read(), limit)


_PIECE_BYTES = 1 << 10
"""Compressed bytes at a time: a damaged piece loses the text of no other."""
_PADDING = re.compile(rb"\0*")


def _inflate(data: bytes, limit: int) -> tuple[bytes | None, str | None]:
    """The text of gzip members, up to a cut or damage; None when longer than `limit`."""
    parts, total, at = [], 0, 0
    while data.startswith(b"\x1f\x8b", at):
        member = isal_zlib.decompressobj(wbits=31)
        while not member.eof and at < len(data):
            piece = data[at : at + _PIECE_BYTES]
            try:
                parts.append(member.decompress(piece, limit - total + 1))
            except INFLATE_ERRORS:
                return b"".join(parts), "the gzip data is damaged"
            at += len(piece)
            total += len(parts[-1])
            if total > limit:
                return None, None
        if not member.eof:
            return b"".join(parts), "the gzip data ends early"
        at -= len(member.unused_data)
        padding = _PADDING.match(data, at)
        at = padding.end() if padding else at
    return b"".join(parts), None
