"""The spans of phases marked by the processes of a run, on one clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpuprof import runfile
from gpuprof.errors import UnreadableTrace
from gpuprof.record.phases.phase_names import GENERATION, TIMED, TRAINING
from gpuprof.tracefile.run_folder.untrusted import Moment, read, read_all

_PHASES = frozenset((*TIMED, TRAINING))


@dataclass(frozen=True, slots=True)
class Mark:
    """A marked span, on the monotonic clock of its host."""

    phase: str
    thread: int
    begin_ns: int
    end_ns: int
    cpu_begin_ns: int
    """CPU time of its thread at its beginning."""
    cpu_end_ns: int


@dataclass(frozen=True, slots=True)
class PhaseLog:
    """The marks of one process."""

    path: str
    pid: int
    program: str | None
    host: str
    boot: str | None
    unix_offset_ns: int
    """Unix time minus its monotonic clock."""
    marks: tuple[Mark, ...]


def read_phase_logs(run: Path) -> tuple[PhaseLog, ...]:
    """The phase logs of a run's folder, without empty ones. Raises UnreadableTrace, one line."""
    try:
        paths = runfile.phase_files_in(run)
    except OSError as error:
        raise UnreadableTrace(f"{run}: cannot be read ({error.strerror})") from None
    found = [_read(path) for path in paths]
    return tuple(one for one in found if one is not None and one.marks)


def holds_phase_logs(run: Path) -> bool:
    """Whether a folder has phase logs."""
    try:
        return run.is_dir() and bool(runfile.phase_files_in(run))
    except OSError:
        return False


def have_roles(runs: Iterable[Path]) -> bool:
    """Whether the processes of these runs have different roles: some train, and some only generate."""
    logs = [log for run in runs for log in read_phase_logs(run)]
    return any(_trains(log) for log in logs) and any(not _trains(log) and _generates(log) for log in logs)


def _trains(log: PhaseLog) -> bool:
    return any(mark.phase in (TRAINING, "forward", "backward") for mark in log.marks)


def _generates(log: PhaseLog) -> bool:
    return any(mark.phase == GENERATION for mark in log.marks)


class _Head(Struct):
    """The line with both clocks of a process."""

    unix_ns: Moment
    monotonic_ns: Moment
    pid: Moment
    boot: str | None = None
    program: str | None = None
    host: Any = None


class _Span(Struct):
    """The line of a marked span."""

    phase: str
    thread: Moment
    begin_ns: Moment
    ns: Moment
    cpu_begin_ns: Moment
    cpu_ns: Moment


def _read(path: Path) -> PhaseLog | None:
    lines = list(runfile.read_lines(path))
    head = read(_Head, next((line for line in lines if "boot" in line), None))
    if head is None:
        return None
    marks = tuple(
        Mark(
            one.phase, one.thread, one.begin_ns, one.begin_ns + one.ns, one.cpu_begin_ns, one.cpu_begin_ns + one.cpu_ns
        )
        for one in read_all(_Span, lines)
        if one.phase in _PHASES
    )
    offset = head.unix_ns - head.monotonic_ns
    return PhaseLog(str(path), head.pid, head.program, str(head.host), head.boot, offset, marks)
