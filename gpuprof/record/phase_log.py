"""Spans of the phases that a process marks, on a clock that all processes of a host share: what puts the roles of a job
on one timeline. A process that only generates takes no steps and has no session; its marks are kept all the same."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ..runfile import append_lines, phases_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Convention, Spans, WholeNs


MOST_SPANS: Convention[Spans] = 50_000
"""Spans that are kept of one process: an iteration has some ten."""
FLUSH_NS: Assumed[WholeNs] = 200_000_000
"""They are written at least this often, while phases end: a process that is killed takes the last ones with it."""


class PhaseLog:
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
        """It is over."""
        now, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        phase, begin_ns, cpu_begin_ns = begun
        if os.getpid() != self._pid:  # we are in a child that was forked, maybe while another thread held the lock
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
    """Which process it is, and how its monotonic clock stands to that of the day."""
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


_logs: dict[str, PhaseLog] = {}


def log_in(folder: str | os.PathLike[str]) -> PhaseLog:
    """The log of this process in a run's folder."""
    name = os.fspath(folder)
    found = _logs.get(name)
    if found is None:
        found = _logs[name] = PhaseLog(Path(name))
    return found
