"""Reads a log or a tracker's file of an RL training: printed output, JSON lines, a summary, a table (CSV), TensorBoard
event files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuprof.errors import UnreadableTrace
from gpuprof.tracefile.training_logs.console import entries
from gpuprof.tracefile.training_logs.event_files import event_entries, event_files
from gpuprof.tracefile.training_logs.frameworks import FRAMEWORKS, Framework, framework_of
from gpuprof.tracefile.training_logs.record import LogEntry, LoggedIteration, by_iteration
from gpuprof.tracefile.training_logs.rows import rows
from gpuprof.units import Assumed, Bytes

LARGEST_LOG_BYTES: Assumed[Bytes] = 1 << 30
"""The largest log that is read."""
_MARKS: tuple[bytes, ...] = (*(key.encode() for one in FRAMEWORKS for key in one.total), b"Total step time:")
_OF_TRACES = (b'"traceEvents"', b'"schemaVersion"', b"SQLite format 3")
_CHUNK_BYTES: Assumed[Bytes] = 1 << 20
_MOST_SEARCHED_BYTES: Assumed[Bytes] = 64 << 20


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """The iterations of one file."""

    path: str
    framework: Framework
    iterations: tuple[LoggedIteration, ...]


def is_training_log(path: Path) -> bool:
    """Whether a file looks like a log or tracker file of a known framework, or a folder holds TensorBoard event files
    of one."""
    try:
        files = event_files(path)
        if files:
            return any(_has_marks(file, binary=True) for file in files)
        return path.is_file() and _has_marks(path, binary=False)
    except OSError:
        return False


def _has_marks(path: Path, binary: bool) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(4096)
            if not binary and (b"\0" in head or any(mark in head for mark in _OF_TRACES)):
                return False
            seen, looked = head, len(head)
            while seen and looked < _MOST_SEARCHED_BYTES:
                if any(mark in seen for mark in _MARKS):
                    return True
                chunk = file.read(_CHUNK_BYTES)
                seen, looked = (seen[-64:] + chunk if chunk else b""), looked + len(chunk)
    except (OSError, ValueError):
        pass
    return False


def read_training_log(path: Path) -> TrainingLog:
    """The iterations of a log. Raises UnreadableTrace, one line, if it has none or cannot be read."""
    try:
        if sum(one.stat().st_size for one in (event_files(path) or [path])) > LARGEST_LOG_BYTES:
            raise UnreadableTrace(
                f"{path} is larger than {LARGEST_LOG_BYTES >> 30} GiB: give the lines of its iterations only"
            )
        found = by_iteration(_entries(path))
    except OSError as error:
        raise UnreadableTrace(f"{path}: cannot be read ({error.strerror})") from None
    framework = framework_of({key for one in found for key in one.values})
    if framework is None:
        names = ", ".join(dict.fromkeys(one.name for one in FRAMEWORKS))
        raise UnreadableTrace(f"{path} has no times of iterations as {names} log them")
    whole = tuple(one for one in found if total_s(framework, one))
    if not whole:
        raise UnreadableTrace(f"{path} has no iteration with its whole time ({framework.total[0]})")
    return TrainingLog(str(path), framework, whole)


def total_s(framework: Framework, one: LoggedIteration) -> float:
    """Seconds of an iteration; 0 if the log lacks them."""
    return max(next((one.values[key] for key in framework.total if key in one.values), 0.0), 0.0)


def _entries(path: Path) -> Iterator[LogEntry]:
    files = event_files(path)
    if files:
        for file in files:
            yield from event_entries(file)
        return
    name = path.name.lower()
    with path.open(encoding="utf-8", errors="replace") as file:
        if name.endswith(".csv"):
            yield from rows(csv.DictReader(file))
        elif name.endswith(".json"):
            yield from _of_document(file.read())
        else:
            yield from entries(file)


def _of_document(text: str) -> Iterator[LogEntry]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        yield from entries(text.splitlines())
        return
    history = document.get("history", document.get("log_history")) if isinstance(document, dict) else document
    yield from rows(history if isinstance(history, list) else [document])
