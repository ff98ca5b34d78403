"""The process that reads and compresses a recording, while the training continues or after its end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ... import runfile
from .exit_status import reap
from .signals import ENDING, OURS, RESTORED, TICK_S
from .starvation import Starvation
from .tell import PATIENCE_S, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Cores, Seconds

Closing = Callable[[Path, str, bool], "tuple[list[str], dict[str, str]]"]
"""(run folder, one of RUNNING, WAITS and ENDED, whether to diagnose) → the command and environment that do it."""
RUNNING, WAITS, ENDED = "running", "waits", ""
"""Whether the training still runs; in WAITS it has just begun, and the process waits for a line on standard input."""
FEWEST_CORES: Assumed[Cores] = 4
"""With fewer, nothing is prepared while the training starts, which may need them all."""
PREPARED_FOR_S: Assumed[Seconds] = 900.0
"""What was prepared takes memory; if the recording is not complete after this long, it is discarded. What was
compiled stays on the disk."""


class RecordingReader:
    """One such process at a time, of one run.

    While the training runs it has the lowest priority, which it cannot raise without privileges. Once the training
    has ended, a process that gets next to no CPU time is replaced by one of normal priority.
    """

    def __init__(self, folder: Path, closing: Closing) -> None:
        self._folder, self._closing = folder, closing
        self._pid: int | None = None
        self._prepared: tuple[int, int] | None = None
        """A process that waits for the recording, and the pipe with which it is started once that is complete."""
        self._kept_until_s = 0.0
        """When it is given up on, on the monotonic clock."""
        self._diagnoses = False
        self._starvation: Starvation | None = None
        self.was_started = False
        """Whether one has been started, or could not be."""

    def prepare(self) -> None:
        """Starts a process that loads its code now, and reads the recording once `start` is called."""
        from .machine import usable_cores

        if usable_cores() < FEWEST_CORES:
            return
        reads, writes = os.pipe()
        self._kept_until_s = time.monotonic() + PREPARED_FOR_S
        try:
            self._prepared = self._spawn(WAITS, True, [(os.POSIX_SPAWN_DUP2, reads, 0)]), writes
        except OSError:
            os.close(writes)
        finally:
            os.close(reads)

    def start(self, running: bool, diagnose: bool) -> None:
        """Starts it. running: the training still runs. diagnose: the recording is diagnosed, not only compressed."""
        self.was_started, self._diagnoses, self._starvation = True, diagnose, None
        self._pid = self._begin_prepared() if running and diagnose else None
        self.let_go()
        try:
            self._pid = self._pid or self._spawn(RUNNING if running else ENDED, diagnose, [])
        except OSError as error:
            runfile.log(self._folder, f"the recording is not read yet: {error}")
            return
        if running:
            self._starvation = Starvation(self._pid)

    def _spawn(self, running: str, diagnose: bool, files: list[tuple[int, int, int]]) -> int:
        command, variables = self._closing(self._folder, running, diagnose)
        # Ctrl-C is meant for the training, which may handle it; we end this process ourselves.
        return os.posix_spawn(
            command[0], command, variables, file_actions=files, setsigmask=[signal.SIGINT], setsigdef=RESTORED
        )

    def _begin_prepared(self) -> int | None:
        """Lets the process that waits begin; None if there is none any more."""
        if self._prepared is None:
            return None
        pid, pipe = self._prepared
        try:
            os.write(pipe, b"\n")
        except OSError:  # it was killed, perhaps because memory ran out
            return None
        os.close(pipe)
        self._prepared = None
        return pid

    def let_go(self) -> None:
        """Ends a process that waits in vain."""
        if self._prepared is not None:
            pid, pipe = self._prepared
            self._prepared = None
            os.close(pipe)
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except OSError:  # its end was read elsewhere
                pass

    def look(self) -> None:
        """Notices that it has ended, and gives up on one that has waited for too long."""
        if self._prepared is not None and time.monotonic() > self._kept_until_s:
            self.let_go()
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
        self.let_go()
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
