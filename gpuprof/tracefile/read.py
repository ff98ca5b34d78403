"""Opens a path and picks the reader for what is in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuprof.errors import UnreadableTrace
from gpuprof.runfile import PARTIAL
from gpuprof.tracefile.nsys.address import split_process
from gpuprof.tracefile.nsys.database import is_sqlite
from gpuprof.tracefile.nsys.report import EXPORTS, exported, is_report
from gpuprof.tracefile.ranks import processes_in
from gpuprof.tracefile.run import RunFolder, find_run, read_run
from gpuprof.tracefile.trace import Trace

Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in the file) now and then while a large file is read."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What a path holds: a trace, a run, or both. One of them is there."""

    trace: Trace | None
    run: RunFolder | None
    failure: str = ""
    """Why a recording of the run could not be read that is there."""
    named: Trace | None = None
    """The same program as torch.profiler recorded it, where `trace` is an export of Nsight Systems."""


def read_recording(path: str | os.PathLike[str], progress: Progress | None = None) -> Recording:
    """The trace in a file, or the run in a folder with the trace of its lowest rank.

    Raises UnreadableTrace, one line, for what is neither. A run may have no trace: it was too short, or was killed.
    """
    if os.fspath(path) == "":
        raise UnreadableTrace("the path is empty: name a recording (. is the current folder)")
    run = run_of(path)
    if run is None:
        return Recording(read_trace(path, progress), None)
    traces, failure = [], ""
    for source in (run.nsys, run.trace):
        if source is None:
            continue
        try:
            traces.append(read_trace(source, progress))
        except UnreadableTrace as error:
            leftover = source.name.endswith(PARTIAL)  # no one expects much of one
            failure = failure or ("" if leftover else str(error))
    if not traces:
        return Recording(None, run, failure)
    return Recording(traces[0], run, failure, named=traces[1] if len(traces) > 1 else None)


def read_pair(paths: Sequence[str | os.PathLike[str]], progress: Progress | None = None) -> Recording | None:
    """A recording of Nsight Systems and one of torch.profiler, given together as files or runs; None where the paths
    are not that.

    Raises UnreadableTrace as `read_trace` does.
    """
    if len(paths) != 2:
        return None
    sides = [_side(Path(path)) for path in paths]
    if {kind for kind, _, _ in sides} != {"nsys", "kineto"}:
        return None
    (_, export, run), (_, text, other) = sorted(sides, key=lambda side: side[0] != "nsys")
    assert export is not None
    assert text is not None
    # Of two runs that one gives the step time whose process held no profiler while it was timed.
    return Recording(read_trace(export, progress), other or run, named=read_trace(text, progress))


def _side(path: Path) -> tuple[str | None, Path | None, RunFolder | None]:
    """(nsys | kineto | None for neither or both, the recording, the run that it is of)."""
    run, file = run_of(path), split_process(path)[0]
    try:
        if file.is_file():
            return "nsys" if processes_in(file) else "kineto", path, run
    except (OSError, ValueError):  # a name that cannot be one
        return None, path, None
    if run is None or (run.nsys is None) == (run.trace is None):
        return None, None, run
    return ("nsys", run.nsys, run) if run.trace is None else ("kineto", run.trace, run)


def run_of(path: str | os.PathLike[str]) -> RunFolder | None:
    """The run that a path belongs to: its folder, one of its traces, or a folder of runs; else None."""
    found = find_run(Path(path))
    return None if found is None else read_run(*found)


def read_trace(path: str | os.PathLike[str], progress: Progress | None = None) -> Trace:
    """The Trace in a file; of an export of Nsight Systems, `EXPORT#pid=N`, that of one of its processes.

    Raises UnreadableTrace with one line for the user if the file cannot be a trace.
    """
    path, pid = split_process(Path(path))
    size, head = _look(path)
    if is_report(path, head):
        path, size = exported(path)
    elif not is_sqlite(head):
        return _read_text(path, size, head, pid, progress)
    from gpuprof.tracefile.nsys.reader import read_nsys

    return read_nsys(path, size, pid)


def _read_text(path: Path, size: int, head: bytes, pid: int | None, progress: Progress | None) -> Trace:
    from gpuprof.tracefile.kineto.reader import read_kineto

    what = _known_other(head)
    if what:
        raise UnreadableTrace(f"{path} is {what}")
    if pid is not None:
        raise UnreadableTrace(
            f"{path} is no export of Nsight Systems: it holds one process, give it without #pid={pid}"
        )
    return read_kineto(path, size, progress)


def _look(path: Path) -> tuple[int, bytes]:
    """How long a file is, and how it begins."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a pipe cannot be read twice, a device may have no end
            raise UnreadableTrace(f"{path} is a pipe or a device: write the trace to a file, and give that")
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size, file.read(512)
    except (FileNotFoundError, ValueError):  # ValueError: no path, such as one with a NUL
        hint = ": standard input is not read, give a file" if str(path) == "-" else ""
        raise UnreadableTrace(f"{path}: no such file{hint}") from None
    except IsADirectoryError:
        raise UnreadableTrace(f"{path} is a folder{_traces_in(path)}") from None
    except OSError as error:
        raise UnreadableTrace(f"{path}: cannot be read ({error.strerror})") from None


def _traces_in(folder: Path) -> str:
    try:
        found = sorted(p.name for p in folder.iterdir() if p.name.endswith((".json", ".json.gz", *EXPORTS)))
    except OSError:
        found = []
    if not found:
        return " that holds no .json or .json.gz, and no .sqlite: name a recording"
    return f": name one trace file in it, such as {found[0]}"


_OTHER = [
    (b"\x89PNG", "a PNG image, not a trace: give the .json or .json.gz that torch.profiler exported"),
    (b"\xff\xd8\xff", "a JPEG image, not a trace: give the .json or .json.gz that torch.profiler exported"),
    (b"PK\x03\x04", "a zip archive: unpack it and give the .json or .json.gz inside"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it first (zstd -d)"),
    (b"BZh", "compressed with bzip2: unpack it first (bunzip2)"),
    (b"\xfd7zXZ", "compressed with xz: unpack it first (unxz)"),
    (b"%PDF", "a PDF, not a trace: give the .json or .json.gz that torch.profiler exported"),
]


def _known_other(head: bytes) -> str | None:
    """What a file is, and what to do, if its first bytes say that it is no Kineto trace."""
    if not head:
        return "empty: the export did not finish, record again"
    for magic, what in _OTHER:
        if head.startswith(magic):
            return what
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page, not a trace: was a login page downloaded in its place?"
    return None
