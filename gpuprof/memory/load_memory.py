"""Opens what `gpuprof memory` takes: snapshots, runs, traces with memory events."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof.errors import UnreadableTrace
from gpuprof.memory.analyse import MOST_LINES, analyse
from gpuprof.memory.difference import with_difference
from gpuprof.memory.memory_file import memory_file
from gpuprof.memory.memory_report import MemoryReport
from gpuprof.memory.snapshot import read_snapshot
from gpuprof.runfile import open_regular
from gpuprof.tracefile.read import read_trace
from gpuprof.tracefile.recording import Recording, resolve
from gpuprof.tracefile.remote import local_copy
from gpuprof.tracefile.trace import Trace
from gpuprof.units import Convention, Lines

if TYPE_CHECKING:
    from gpuprof.tracefile.recording import Given

_GZIP, _PICKLE = b"\x1f\x8b", b"\x80"
_ALL_LINES: Convention[Lines] = 1 << 62
"""As many lines as there are."""


def load_memory(recording: Given, after: Given = None, lines: int | None = None) -> MemoryReport:
    """The report of a snapshot, a run, or a trace with memory events, given as a path or a URL; or that of `after`,
    with the difference of its peak from that of `recording`.

    lines: lines of Python to keep (50). Raises UnreadableTrace, one line, for what cannot be read and for several
    ranks.
    """
    kept = lines or MOST_LINES
    if after is None:
        return _report(resolve(recording), kept)
    return with_difference(_report(resolve(recording), _ALL_LINES), _report(resolve(after), _ALL_LINES), kept)


def _report(recording: Recording, lines: int) -> MemoryReport:
    if recording.folder is not None:
        place = memory_file(recording.folder)
        if place is None:
            raise UnreadableTrace(_nothing_in(recording))
    elif recording.loaded is not None:
        return _of_trace(recording.loaded, str(recording), lines)
    else:
        place = recording.one
    with local_copy(str(place)) as path:
        if not _is_trace(path):
            found = analyse(read_snapshot(path), lines)
            return replace(found, source=replace(found.source, path=str(place)))
        return _of_trace(read_trace(path), str(place), lines)


def _of_trace(trace: Trace, path: str, lines: int) -> MemoryReport:
    from gpuprof.memory.memory_events import analyse_trace

    return analyse_trace(trace, path, trace.reading.size_bytes, lines)


def _is_trace(path: Path) -> bool:
    """Whether a file begins as traces of torch.profiler do. Raises UnreadableTrace for a packed snapshot."""
    try:
        with open_regular(path) as file:
            head = file.read(16) if path.is_file() else b""
        if head.startswith(_GZIP):
            with gzip.open(path) as unpacked:
                if unpacked.read(1) == _PICKLE:
                    raise UnreadableTrace(f"{path} is compressed with gzip: unpack the snapshot first (gunzip)")
            return True
    except (OSError, ValueError, EOFError, zlib.error):  # reading it says so
        return False
    return head.lstrip().startswith((b"{", b"["))


def _nothing_in(recording: Recording) -> str:
    if recording.run_folder is None and recording.kind == "ranks":
        return f"{recording} holds traces of several ranks: name one of them"
    return f"{recording} holds no memory snapshot: record one with gpuprof trace --memory"
