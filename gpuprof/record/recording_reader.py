"""The process that reads and compresses a recording, while the training continues or after its end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from .. import runfile
from .exit_status import reap
from .signals import ENDING, OURS, RESTORED, TICK_S
from .starvation import Starvation
from .tell import PATIENCE_S, tell

Closing = Callable[[Path, bool, bool], "tuple[list[str], dict[str, str]]"]
"""(run folder, whether the training still runs, whether to diagnose) → the command and environment that do it."""


class RecordingReader:
    """One such process at a time, of one run.

    While the training runs it has the lowest priority, which it cannot raise without privileges. Once the training
    has ended, a process that gets next to no CPU time is replaced by one of normal priority.
    """

    def __init__(self, folder: Path, closing: Closing) -> None:
        self._folder, self._closing = folder, closing
        self._pid: int | None = None
        self._diagnoses = False
        self._starvation: Starvation | None = None
        self.was_started = False
        """Whether one has been started, or could not be."""

    def start(self, running: bool, diagnose: bool) -> None:
        """Starts it. running: the training still runs. diagnose: the recording is diagnosed, not only compressed."""
        self.was_started, self._diagnoses, self._starvation = True, diagnose, None
        try:
            command, variables = self._closing(self._folder, running, diagnose)
            # Ctrl-C is meant for the training, which may handle it; we end this process ourselves.
            self._pid = os.posix_spawn(command[0], command, variables, setsigmask=[signal.SIGINT], setsigdef=RESTORED)
        except OSError as error:
            runfile.log(self._folder, f"the recording is not read yet: {error}")
            return
        if running:
            self._starvation = Starvation(self._pid)

    def look(self) -> None:
        """Notices that it has ended."""
        if self._pid is not None and reap(self._pid)[0]:
            self._pid = None

    def wait(self) -> bool:
        """Waits for it after the training's end; returns whether it finished. Ctrl-C ends the wait and the process."""
        warn_at: float | None = time.monotonic() + PATIENCE_S
        while True:
            self.look()
            if self._pid is None:
                return True
            info = signal.sigtimedwait(OURS, TICK_S)
            if info is not None and info.si_signo in ENDING:
                self.stop()
                return False
            if self._starvation is not None and self._starvation.begins():
                self.stop()
                self.start(running=False, diagnose=self._diagnoses)
            if warn_at is not None and time.monotonic() > warn_at:
                warn_at = None
                tell("the training has ended; reading its recording (Ctrl-C leaves that to gpuprof diagnose)")

    def stop(self) -> None:
        """Kills it, and removes its half-written files."""
        if self._pid is None:
            return
        try:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            for partial in self._folder.glob(f".*.{self._pid}{runfile.PARTIAL}"):
                partial.unlink(missing_ok=True)
        except OSError:
            pass
        self._pid = None
