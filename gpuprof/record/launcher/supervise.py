"""Around the training process: makes the run folder, starts the target, waits for it, and ends as it ended.

Whatever fails here, the target runs. What is slow (the version, the redacted command) is done after its start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ... import runfile
from . import standard_streams
from .command import CannotStart, Target
from .exit_status import in_a_word, reap, signal_name
from .folder import make_folder, point_latest
from .recording_reader import Closing, RecordingReader
from .signals import ENDING, OURS, RESTORED, TICK_S, Guard, Post, die_of
from .stall_reader import StallReader
from .target_environment import VARIABLES, environment
from .target_under_nsys import TargetUnderNsys
from .tell import PATIENCE_S, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Seconds, WholeNs


TELEMETRY_AFTER_NS: Assumed[WholeNs] = 500_000_000
"""A target that has run this long may train. One that imports torch takes longer to its first step, so what starts now
disturbs no timing."""
REPORT_S: Assumed[Seconds] = 300.0
"""Seconds within which Nsight Systems must write its report after the target's end."""
SETTLED_NS: Assumed[WholeNs] = 1_000_000_000
"""Two changes to a folder may have the same modification time, so it is looked at again for this long after one."""
TARGET_LOOK_S: Assumed[Seconds] = 0.02
"""Seconds between two looks for a target that another process starts."""
NOTHING = (
    "nothing was recorded: the target took no optimizer step in a Python with torch "
    "(a loop without one marks its steps with gpuprof.Recorder)"
)
"""Message for a target in which no step was seen."""
ONLY_PHASES = (
    "no optimizer step was taken; the phases that the target marks were recorded: gpuprof diagnose reads them"
    " together with the run of the process that trains"
)
"""Message for a target that only generates, for example."""
INNER = "inner"
"""File in the folder of a run whose target is itself a `gpuprof trace`: where that one records."""
Around = Callable[[Path, "list[str]"], "list[str]"]
"""(report without its ending, command) → the command that runs that command under Nsight Systems."""


def supervise(
    target: Target, options: dict[str, Any], out: str | None, closing: Closing, around: Around | None = None
) -> int:
    """Runs the target, inside `around` if that is given. Returns its exit code, or minus its signal.

    Raises CannotStart before it started.
    """
    for note in target.notes:
        tell(note)
    standard_streams.fill()
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # otherwise the target's exit status would be lost
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OURS)
    try:
        run = _Run(target, options, out, closing, around)
        status = run.start_and_wait(before)
    finally:
        while signal.sigtimedwait(OURS, 0) is not None:  # meant for a target that has ended
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return status


def end_as(status: int) -> int:
    """The exit code of the target, for us to return. Does not return if a signal ended the target."""
    if status >= 0:
        return status
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass
    return die_of(-status)


def _note_inner(folder: Path) -> None:
    """If another gpuprof trace runs this one, leaves it a note about where this one records: the outer one will record
    nothing."""
    outer = os.environ.get(runfile.RUN_VARIABLE)
    if outer:
        with contextlib.suppress(OSError):
            (Path(outer) / INNER).write_text(str(folder.absolute()), encoding="utf-8", errors="surrogateescape")


def _inner(folder: Path) -> str | None:
    """The folder into which a gpuprof trace inside this run's target records; None without one."""
    try:
        return (folder / INNER).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None


# -- the run


class _Run:
    def __init__(
        self, target: Target, options: dict[str, Any], out: str | None, closing: Closing, around: Around | None
    ) -> None:
        self._target, self._options, self._around = target, options, around
        self._began_ns = time.time_ns()
        self._manifest: dict[str, Any] = {
            "schema": runfile.SCHEMA, "gpuprof": None, "status": "running", "started": self._began_ns, "ended": None,
            "command": [], "cwd": _working_directory(), "python": target.python, "options": options,
            "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ}, "exit": None,
            "host": None,
        }  # fmt: skip
        self._outputs = standard_streams.outputs()
        self._folder = self._make(target.stem, out)
        self._reader: RecordingReader | None = None
        self._stalls: StallReader | None = None
        if self._folder is not None:
            _note_inner(self._folder)
            self._reader = RecordingReader(self._folder, closing)
            self._stalls = StallReader(self._folder)
        self._changed_ns = -1
        self._linked = False
        self._telemetry: Any = None
        self._asked_to_end = False
        self._under_nsys: TargetUnderNsys | None = None

    def _make(self, stem: str, out: str | None) -> Path | None:
        """Makes the folder with its manifest, here or elsewhere; None if that is not possible anywhere."""
        try:
            folder = make_folder(stem, out)
            try:
                self._write_manifest(folder)
            except OSError:
                _remove(folder)
                raise
            return folder
        except CannotStart:
            raise
        except Exception as error:
            why = getattr(error, "strerror", None) or str(error)
        try:
            import tempfile

            folder = Path(tempfile.mkdtemp(prefix=f"gpuprof-{stem}-"))
            self._write_manifest(folder)
        except Exception:
            tell(f"nowhere to record to ({why}): this run is not recorded")
            return None
        tell(f"no run folder can be made here ({why}): recording to {folder}")
        return folder

    def _write_manifest(self, folder: Path) -> None:
        runfile.write_json(folder / runfile.MANIFEST, self._manifest)

    def start_and_wait(self, mask: set[Any]) -> int:
        """Runs the target to its end; returns its exit status. Raises CannotStart."""
        guard = Guard()
        try:
            called_off = [n for n in signal.sigpending() & ENDING if signal.getsignal(n) != signal.SIG_IGN]
            if called_off:  # the signal came before the target was there to receive it
                guard.dismiss()
                self._take_back()
                return -called_off[0]
            pid = self._start(mask)
        except OSError as error:
            guard.dismiss()
            self._take_back()
            program = self._target.argv[0]
            hint = "; does it lack its #! line?" if error.errno == errno.ENOEXEC else ""
            raise CannotStart(f"{program}: cannot be started ({error.strerror}{hint})") from None
        guard.watch(pid)
        standard_streams.let_go()
        try:
            self._describe()
        except Exception as error:
            self._log(f"describing the run: {type(error).__name__}: {error}")
        status = (
            self._wait(pid, guard)
            if self._under_nsys is None
            else self._wait_under_nsys(self._under_nsys, pid, guard, mask)
        )
        guard.dismiss()
        ended = time.time()
        if self._telemetry is not None:
            from . import telemetry

            telemetry.stop(self._telemetry)
        try:
            self._end(status, ended)
        except Exception as error:
            self._log(f"the end of the run: {type(error).__name__}: {error}")
        guard.reap()
        return status

    def _take_back(self) -> None:
        """Removes the folder of a run that did not start."""
        if self._folder is not None:
            _remove(self._folder)

    def _start(self, mask: set[Any]) -> int:
        if self._around is not None and self._folder is not None:
            return self._start_around(self._around, self._folder, mask)
        argv = list(self._target.argv)
        return os.posix_spawnp(argv[0], argv, environment(self._folder), setsigmask=mask, setsigdef=RESTORED)

    def _start_around(self, around: Around, folder: Path, mask: set[Any]) -> int:
        """Starts Nsight Systems, which is to start the target. Its output goes to a log, and it has its own process
        group, so that a Ctrl-C reaches the target once, from us."""
        self._under_nsys = TargetUnderNsys()
        argv = around(folder / runfile.NSYS, self._under_nsys.command(self._target.argv))
        log = str(folder / runfile.NSYS_LOG)
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        return os.posix_spawnp(
            argv[0], argv, environment(folder), file_actions=files, setpgroup=0, setsigmask=mask, setsigdef=RESTORED
        )

    def _wait_under_nsys(self, under_nsys: TargetUnderNsys, nsys: int, guard: Guard, mask: set[Any]) -> int:
        """Waits for a target that Nsight Systems runs, and for its report."""
        post = Post(guard, own_group=True)
        watched, warned, nsys_status, deadline = False, False, None, None
        while True:
            tick = TICK_S if watched else TARGET_LOOK_S
            info = signal.sigtimedwait(OURS, tick if under_nsys.pid is None else post.patience(tick))
            if info is not None and info.si_signo != signal.SIGCHLD:
                self._asked_to_end = self._asked_to_end or info.si_signo in ENDING
                post.came(info.si_signo, info.si_code)
            under_nsys.listen(0.0)
            if under_nsys.pid and not watched:
                watched = True
                guard.watch(under_nsys.pid)
            if nsys_status is None:
                ended, status = reap(nsys)
                nsys_status = status if ended else None
            if nsys_status is not None:
                under_nsys.listen(TARGET_LOOK_S)
                if not under_nsys.is_answered and not self._asked_to_end:
                    return self._start_without(under_nsys, guard, mask)
                if under_nsys.status is not None or under_nsys.is_closed or not under_nsys.is_answered:
                    under_nsys.close()
                    return nsys_status if under_nsys.status is None else under_nsys.status
            elif under_nsys.status is not None:
                now = time.monotonic()
                deadline = deadline or now + REPORT_S
                if not warned and now > deadline - REPORT_S + PATIENCE_S:
                    warned = True
                    tell("the training has ended; Nsight Systems writes its report (Ctrl-C: go on without it)")
                if now > deadline:
                    tell(f"Nsight Systems did not write its report within {REPORT_S:.0f} s and was ended")
                    os.killpg(nsys, signal.SIGKILL)
            # Once the target has ended, a signal is meant for nsys.
            receiver = under_nsys.pid if under_nsys.status is None else nsys if nsys_status is None else None
            if receiver:
                post.deliver(receiver)
            if info is None:
                self._look_safely()

    def _start_without(self, under_nsys: TargetUnderNsys, guard: Guard, mask: set[Any]) -> int:
        """Nsight Systems ended before it had started the target, which still runs."""
        assert self._folder is not None
        tell(
            f"Nsight Systems did not start the target ({_last_line(self._folder / runfile.NSYS_LOG)}): it runs without"
        )
        under_nsys.take_back()
        self._under_nsys = self._around = None
        self._manifest["options"] = self._options = self._options | {"nsys": False, "gpu_metrics": False}
        self._write_manifest(self._folder)
        pid = self._start(mask)
        guard.watch(pid)
        standard_streams.let_go()
        return self._wait(pid, guard)

    def _wait(self, pid: int, guard: Guard) -> int:
        post = Post(guard)
        while True:
            info = signal.sigtimedwait(OURS, post.patience(TICK_S))
            if info is None or info.si_signo == signal.SIGCHLD:
                ended, status = reap(pid)
                if ended:
                    return status
            else:
                self._asked_to_end = self._asked_to_end or info.si_signo in ENDING
                post.came(info.si_signo, info.si_code)
            post.deliver(pid)
            if info is None:
                self._look_safely()

    # -- while it runs

    def _look_safely(self) -> None:
        try:
            self._look()
        except Exception as error:
            self._log(f"looking after the run: {type(error).__name__}: {error}")

    def _look(self) -> None:
        """Once per tick: what is new in the folder, and what remains to be done."""
        if self._folder is None or self._reader is None:
            return
        self._reader.look()
        if self._stalls is not None:
            self._stalls.look()
        if self._telemetry is None and time.time_ns() - self._began_ns > TELEMETRY_AFTER_NS:
            from . import telemetry

            self._telemetry = telemetry.start(self._folder)
            if self._target.recordable and self._under_nsys is None:
                self._reader.prepare()
        changed_ns = self._folder.stat().st_mtime_ns
        if changed_ns == self._changed_ns and time.time_ns() - changed_ns > SETTLED_NS:
            return
        self._changed_ns = changed_ns
        ranks = self._ranks()
        if ranks and not self._linked:
            self._linked = True
            point_latest(self._folder)
        if not self._reader.was_started and self._window_closed(ranks):
            self._reader.start(running=True, diagnose=True)

    def _describe(self) -> None:
        """Adds to the manifest what takes time and is not needed by the target, which is starting meanwhile."""
        from ... import __version__
        from ..base.redact import redact
        from .machine import describe_host

        if self._folder is None:
            return
        self._manifest["gpuprof"] = __version__
        self._manifest["command"] = redact(self._target.argv)
        self._manifest["host"] = describe_host()
        self._write_manifest(self._folder)

    def _ranks(self) -> list[dict[str, Any]]:
        """What the ranks have written about themselves, by rank."""
        assert self._folder is not None
        return runfile.ranks_in(self._folder)

    def _window_closed(self, ranks: list[dict[str, Any]]) -> bool:
        """Whether the trace of the lowest recorded rank is complete."""
        assert self._folder is not None
        for rank in ranks:
            for window in rank.get("windows") or ():
                if isinstance(window, dict) and window.get("window") == "trace":
                    file = str(window.get("file"))
                    return os.path.basename(file) == file and (self._folder / file).is_file()
        return False

    # -- when it has ended

    def _end(self, status: int, ended: float) -> None:
        """Writes how the target ended, finishes the verdict, and says what there is or why there is nothing."""
        from .last_words import last_words, tell_failed_allocation

        folder, reader = self._folder, self._reader
        if folder is None or reader is None:
            return
        if not reader.was_started:
            reader.let_go()
        self._manifest["status"] = in_a_word(status)
        self._manifest["ended"] = int(ended * 1e9)
        self._manifest["exit"] = {
            "code": status if status >= 0 else None,
            "signal": signal_name(-status) if status < 0 else None,
        }
        self._write_manifest(folder)
        ranks = self._ranks()
        if ranks:
            self._note_native_writes(folder)
        tell_failed_allocation(folder)
        if not ranks:
            reader.stop()
            inner = _inner(folder)
            if inner:
                tell(f"nothing was recorded here: the target has a gpuprof trace of its own, which records in {inner}")
            elif runfile.phase_files_in(folder):
                tell(ONLY_PHASES)
            elif self._target.recordable:
                tell(NOTHING)
            return
        point_latest(folder)
        if status < 0 or self._asked_to_end:  # whoever sent the signal may soon kill us
            reader.stop()
        else:
            self._finish_reading(folder, reader, ranks)
        last_words(folder, ranks, self._options, ended)

    def _finish_reading(self, folder: Path, reader: RecordingReader, ranks: list[dict[str, Any]]) -> None:
        """Waits for the reader of the recording; starts it if the target ended before that."""
        if not reader.was_started and (self._window_closed(ranks) or _was_captured(ranks)):
            reader.start(running=False, diagnose=True)
        if not reader.wait():
            return
        if any(re.fullmatch(runfile.WINDOW_FILE, name) for name in os.listdir(folder)):
            reader.start(running=False, diagnose=False)
            reader.wait()

    def _note_native_writes(self, folder: Path) -> None:
        """Adds files of the working directory that changed during the run without any hook in Python noticing."""
        try:
            from ..files.session_files import files_of_session
            from ..files.written import FILE, append, changed_since

            known = {str(line.get("path")) for line in runfile.read_lines(folder / FILE)}
            here, outputs = _working_directory(), self._outputs | files_of_session()
            without = {runfile.RUNS, folder.name}
            found = changed_since(here, self._began_ns, known, without, outputs) if here else []
            if found:
                append(str(folder / FILE), [("writes", path, None) for path in found])
        except Exception as error:
            self._log(f"looking for what was written: {type(error).__name__}: {error}")

    def _log(self, message: str) -> None:
        if self._folder is not None:
            from ..base.redact import redact_text

            runfile.log(self._folder, redact_text(message))


def _was_captured(ranks: list[dict[str, Any]]) -> bool:
    """Whether Nsight Systems has recorded steps; its report is read after the run's end."""
    windows = [window for rank in ranks for window in rank.get("windows") or ()]
    return any(isinstance(window, dict) and window.get("window") == runfile.NSYS for window in windows)


def _last_line(path: Path) -> str:
    """The last line of a log, for a message of one line."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        lines = []
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "it said nothing")


def _remove(folder: Path) -> None:
    """Removes a folder that can contain nothing but a manifest."""
    try:
        (folder / runfile.MANIFEST).unlink(missing_ok=True)
        folder.rmdir()
    except OSError:
        pass


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None
