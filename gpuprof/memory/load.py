"""Opens what `gpuprof memory` takes: snapshots, folders of runs, traces with memory events."""

from __future__ import annotations

from pathlib import Path

from gpuprof.errors import UnreadableTrace
from gpuprof.memory.analyse import LINES, analyse
from gpuprof.memory.difference import with_difference
from gpuprof.memory.memory_report import MemoryReport
from gpuprof.memory.snapshot import read_snapshot
from gpuprof.runfile import open_regular, snapshots_in, trace_file

_ALL = 1 << 62
"""As many lines as there are."""


def load_memory(path: Path, after: Path | None = None, lines: int | None = None) -> MemoryReport:
    """The report of a snapshot, or of `after` with what its peak holds more of than that of `path`.

    lines: lines of Python to keep (50). Raises UnreadableTrace, one line, for what cannot be read.
    """
    kept = lines or LINES
    if after is None:
        return _report(path, kept)
    return with_difference(_report(path, _ALL), _report(after, _ALL), kept)


def _report(path: Path, lines: int) -> MemoryReport:
    place = _recording_of(path)
    if is_trace(place):
        from gpuprof.memory.trace import analyse_trace
        from gpuprof.tracefile.read import read_trace

        return analyse_trace(read_trace(place), str(place), place.stat().st_size, lines)
    return analyse(read_snapshot(place), lines)


def has_snapshot(path: Path) -> bool:
    """Whether there is something to load of a run's folder; of a file there always is."""
    try:
        _recording_of(path)
    except UnreadableTrace:
        return False
    return True


def is_trace(path: Path) -> bool:
    """Whether a file begins as traces of torch.profiler do."""
    try:
        with open_regular(path) as file:
            return file.read(16).lstrip().startswith((b"{", b"[", b"\x1f\x8b")) if path.is_file() else False
    except (OSError, ValueError):  # reading it says so
        return False


def _recording_of(path: Path) -> Path:
    """The file itself, or of a run's folder a snapshot of a failed allocation first, a trace last."""
    try:
        if not path.is_dir():
            return path
        found = [*snapshots_in(path), *sorted(path.glob(f"{trace_file(0, 'memory')}*"))]
    except OSError as error:
        raise UnreadableTrace(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise UnreadableTrace(f"{str(path)!r} is no name of a file") from None
    if not found:
        raise UnreadableTrace(f"{path} holds no memory snapshot: record one with gpuprof trace --memory")
    return found[0]
