"""Spans of the phases that a process marks, on a clock that all processes of a host share, so that the roles of a job
can be put on one timeline. Marks are kept also for a process that only generates and so has no session."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ...runfile import append_lines, phases_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Convention, Spans, WholeNs


MOST_SPANS: Convention[Spans] = 50_000
"""Spans that are kept per process: an iteration has about ten."""
FLUSH_NS: Assumed[WholeNs] = 200_000_000
"""Spans are written at least this often while phases end; a killed process loses the last ones."""


class PhaseLogWriter:
    """The spans of this process, in a run's folder. Never raises: a full disk must not reach the training."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._pid, self._lines, self._count, self._flushed_ns = os.getpid(), [head()], 0, 0

    def begin(self, phase: str) -> tuple[str, int, int]:
        """A phase begins on this thread; returns what `end` takes."""
        return phase, time.monotonic_ns(), time.thread_time_ns()

    def end(self, begun: tuple[str, int, int]) -> None:
        """The phase has ended."""
        now, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        phase, begin_ns, cpu_begin_ns = begun
        if os.getpid() != self._pid:  # in a forked child; another thread may have held the lock
            self._lock = threading.Lock()
            self._start()
        with self._lock:
            self._count += 1
            if self._count > MOST_SPANS:
                return
            self._lines.append(
                {
                    "phase": phase,
                    "thread": threading.get_ident(),
                    "begin_ns": begin_ns,
                    "ns": now - begin_ns,
                    "cpu_begin_ns": cpu_begin_ns,
                    "cpu_ns": max(cpu_ns - cpu_begin_ns, 0),
                }
            )
            if now - self._flushed_ns > FLUSH_NS:
                lines, self._lines, self._flushed_ns = self._lines, [], now
                with contextlib.suppress(OSError):
                    append_lines(self._folder / phases_file(self._pid), lines)


def head() -> dict[str, Any]:
    """Identifies the process, and gives the offset of its monotonic clock from unix time."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        boot = None
    monotonic_ns = time.monotonic_ns()
    return {
        "pid": os.getpid(),
        "program": os.path.basename(sys.argv[0] if sys.argv else "") or None,
        "host": socket.gethostname(),
        "boot": boot,
        "monotonic_ns": monotonic_ns,
        "unix_ns": time.time_ns() - (time.monotonic_ns() - monotonic_ns),
    }


_logs: dict[str, PhaseLogWriter] = {}


def log_in(folder: str | os.PathLike[str]) -> PhaseLogWriter:
    """The log of this process in a run's folder."""
    name = os.fspath(folder)
    found = _logs.get(name)
    if found is None:
        found = _logs[name] = PhaseLogWriter(Path(name))
    return found
