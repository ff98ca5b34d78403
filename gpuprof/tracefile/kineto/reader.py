"""Picks between the two readers of Kineto text by its size."""

from __future__ import annotations

import zlib
from pathlib import Path

from isal import isal_zlib

from gpuprof.errors import UnreadableTrace
from gpuprof.tracefile.kineto.build import build
from gpuprof.tracefile.kineto.envelope import NeedMore
from gpuprof.tracefile.kineto.small import read_small
from gpuprof.tracefile.model import Trace

SMALL_BYTES = 25 << 20
"""Text up to this long is read by msgspec: it is done in the time that numba takes to load."""


def read_kineto(path: Path, size: int, progress=None, small_bytes: int = SMALL_BYTES) -> Trace:
    """The Trace in a Kineto file of `size` bytes."""
    data, truncated = _whole_text(path, size, small_bytes)
    try:
        if data is None:
            from gpuprof.tracefile.kineto.stream import read_stream

            parsed = read_stream(path, size, progress)
        else:
            parsed = read_small(data, truncated)
    except NeedMore:
        raise UnreadableTrace(
            f"{path}: ends before its first event: the export did not finish, record again"
        ) from None
    except UnreadableTrace as error:
        raise UnreadableTrace(f"{path} is not a profiler trace: {error}") from None
    return build(parsed, str(path), size)


def _whole_text(path: Path, size: int, limit: int) -> tuple[bytes | None, str | None]:
    """The text of a small file and why it ends early if it does; None in its place when it is longer than `limit`."""
    with open(path, "rb") as file:
        if file.read(2) != b"\x1f\x8b":
            file.seek(0)
            return (file.read(), None) if size <= limit else (None, None)
        if size > limit:
            return None, None
        file.seek(0)
        return _inflate(file.read(), limit)


def _inflate(data: bytes, limit: int) -> tuple[bytes | None, str | None]:
    """The text of gzip members, up to a cut or damage; None when longer than `limit`."""
    parts, total = [], 0
    while data.startswith(b"\x1f\x8b"):
        member = isal_zlib.decompressobj(wbits=31)
        try:
            parts.append(member.decompress(data, limit - total + 1))
        except (isal_zlib.error, zlib.error):
            return b"".join(parts), "the gzip data is damaged"
        total += len(parts[-1])
        if total > limit:
            return None, None
        if not member.eof:
            return b"".join(parts), "the gzip data ends early"
        data = member.unused_data.lstrip(b"\0")
    return b"".join(parts), None
