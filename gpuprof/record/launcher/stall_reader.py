"""Runs `gpuprof hang` on a run that stalls, once its ranks have written where they are."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from ... import runfile
from .exit_status import reap
from .signals import RESTORED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Seconds


AFTER_S: Assumed[Seconds] = 3.0
"""Seconds for the other ranks to write what they know: their steps end at about the same time."""
_START = "import sys; sys.path[0] = {root!r}; from gpuprof.cli.shared.stall_verdict import main; main({folder!r})"


class StallReader:
    """One process at a time, of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen_ns = 0
        self._due_s: float | None = None
        self._pid: int | None = None

    def look(self) -> None:
        """Starts it a few seconds after a rank has reported a stall."""
        if self._pid is not None and reap(self._pid)[0]:
            self._pid = None
        try:
            changed_ns = (self._folder / runfile.HANG / runfile.STALLED).stat().st_mtime_ns
        except OSError:
            return
        if changed_ns != self._seen_ns:
            self._seen_ns, self._due_s = changed_ns, self._due_s or time.monotonic() + AFTER_S
        if self._due_s is not None and time.monotonic() > self._due_s and self._pid is None:
            self._due_s = None
            command = [
                sys.executable,
                "-c",
                _START.format(root=str(Path(__file__).parents[3]), folder=str(self._folder)),
            ]
            self._pid = os.posix_spawn(
                command[0], command, dict(os.environ), setsigmask=[signal.SIGINT], setsigdef=RESTORED
            )
