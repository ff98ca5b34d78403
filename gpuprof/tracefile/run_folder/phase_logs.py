"""The spans of phases marked by the processes of a run, on one clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof import runfile
from gpuprof.errors import UnreadableTrace
from gpuprof.record.phase_names import GENERATION, TIMED, TRAINING
from gpuprof.tracefile.run_folder.untrusted import whole
from gpuprof.units import Convention, WholeNs

_LATEST_NS: Convention[WholeNs] = 2**62
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


def _read(path: Path) -> PhaseLog | None:
    lines = list(runfile.read_lines(path))
    head = next((line for line in lines if "boot" in line), None)
    if head is None:
        return None
    moments = [whole(head.get(key), most=_LATEST_NS) for key in ("unix_ns", "monotonic_ns", "pid")]
    if None in moments:
        return None
    unix_ns, monotonic_ns, pid = (moment or 0 for moment in moments)
    boot, program = (value if isinstance(value := head.get(key), str) else None for key in ("boot", "program"))
    host = str(head.get("host"))
    return PhaseLog(str(path), pid, program, host, boot, unix_ns - monotonic_ns, tuple(_marks(lines)))


def _marks(lines: Iterable[dict[str, Any]]) -> Iterable[Mark]:
    for line in lines:
        keys = ("thread", "begin_ns", "ns", "cpu_begin_ns", "cpu_ns")
        thread, begin, ns, cpu_begin, cpu = (whole(line.get(key), most=_LATEST_NS) for key in keys)
        if line.get("phase") not in _PHASES or None in (thread, begin, ns, cpu_begin, cpu):
            continue
        begin, cpu_begin = begin or 0, cpu_begin or 0
        yield Mark(str(line["phase"]), thread or 0, begin, begin + (ns or 0), cpu_begin, cpu_begin + (cpu or 0))
