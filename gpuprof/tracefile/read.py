"""Opens a file and picks the reader for what is in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from gpuprof.errors import UnreadableTrace
from gpuprof.runfile import MANIFEST
from gpuprof.tracefile.nsys.address import split_process
from gpuprof.tracefile.nsys.database import is_sqlite
from gpuprof.tracefile.nsys.report import EXPORTS, exported, is_report
from gpuprof.tracefile.trace import Trace

Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in the file) now and then while a large file is read."""


def read_trace(path: str | os.PathLike[str], progress: Progress | None = None) -> Trace:
    """The Trace in a file; `EXPORT#pid=N` is one process of an Nsight Systems export.

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
    """(size of a file, its first bytes)."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a pipe cannot be read twice, a device may have no end
            raise UnreadableTrace(f"{path} is a pipe or a device: write the trace to a file, and give that")
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size, file.read(512)
    except (FileNotFoundError, ValueError):  # ValueError: not a valid path, such as one with a NUL
        hint = ": standard input is not read, give a file" if str(path) == "-" else ""
        if path.is_symlink():
            hint = f": the link leads to {path.readlink()}"
        raise UnreadableTrace(f"{path}: no such file{hint}") from None
    except IsADirectoryError:
        raise UnreadableTrace(f"{path} is a folder{_traces_in(path)}") from None
    except OSError as error:
        raise UnreadableTrace(f"{path}: cannot be read ({error.strerror})") from None


def _traces_in(folder: Path) -> str:
    try:
        names = sorted(p.name for p in folder.iterdir())
    except OSError:
        names = []
    found = [name for name in names if name.endswith((".json", ".json.gz", *EXPORTS)) and name != MANIFEST]
    if not found and any("tfevents" in name for name in names):
        return (
            " with TensorBoard's event files: gpuprof diagnose reads those of verl and its like, which log the times of"
            " an iteration's phases; of any other training record one: gpuprof trace"
        )
    if not found and MANIFEST in names:
        return f" with a {MANIFEST} that is not one of gpuprof's, and no trace: name a recording"
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
    *((bytes((0x80, protocol)), "a memory snapshot, not a trace: gpuprof memory reads it") for protocol in range(2, 6)),
    (b"%PDF", "a PDF, not a trace: give the .json or .json.gz that torch.profiler exported"),
]


def _known_other(head: bytes) -> str | None:
    """What a file is, and what to do, if its first bytes show that it is not a Kineto trace."""
    if not head:
        return "empty: the export did not finish, record again"
    for magic, what in _OTHER:
        if head.startswith(magic):
            return what
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page, not a trace: was a login page downloaded in its place?"
    return None
