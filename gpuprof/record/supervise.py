"""Around the training process: makes the run folder, starts the target, waits, and ends as the target ended.

Whatever goes wrong here, the target runs. What is slow (the version, the redacted command) comes after its start.
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

from .. import runfile
from .command import CannotStart, Target
from .folder import make_folder, point_latest
from .signals import OURS, RESTORED, Guard, Post, die_of
from .target_under_nsys import TargetUnderNsys

ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""Signals by which someone says that all is to end."""
TICK_S = 0.2
TELEMETRY_AFTER_NS = 500_000_000
"""A target that has lived so long may come to train; whoever imports torch takes longer to its first step, and what
starts at the same time is in no one's timing."""
PATIENCE_S = 3.0
"""Seconds after the target's end without a word from us."""
REPORT_S = 300.0
"""Seconds that Nsight Systems gets to write its report after the target's end."""
SOON_S = 0.02
"""Between two looks for a target that someone else starts."""
FRESH_S = 10.0
"""A verdict that was printed so short a time ago is still on the screen."""
NOTHING = (
    "nothing was recorded: the target took no optimizer step in a Python with torch "
    "(a loop without one marks its steps with gpuprof.Recorder)"
)
"""What is said of a target whose steps nothing shows."""
INNER = "inner"
"""In the folder of a run whose target is a `gpuprof trace` itself: where that one records."""
VERDICT = "verdict.txt"
"""The verdict in two lines, left in the run folder by what reads the recording."""
INJECT = Path(__file__).parent / "inject"

VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "TORCH_COMPILE_DISABLE",
    "TORCHDYNAMO_DISABLE", "TOKENIZERS_PARALLELISM", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_ALGO",
    "NCCL_PROTO", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "TEARDOWN_CUPTI",
)  # fmt: skip
"""The environment variables that a manifest contains: those that change how fast a step is, and no others."""

# Compiled when first needed: at the start every millisecond counts.
_RANK = r"rank(\d+)\.json"

Closing = Callable[[Path, bool, bool], "tuple[list[str], dict[str, str]]"]
"""(run folder, whether the training still runs, whether to diagnose) → the command and environment that do it."""
Around = Callable[[Path, "list[str]"], "list[str]"]
"""(report without its ending, command) → the command that runs that command under Nsight Systems."""


def supervise(
    target: Target, options: dict[str, Any], out: str | None, closing: Closing, around: Around | None = None
) -> int:
    """Runs the target, with something around it if that is given. Returns its exit code, or its signal below zero.

    Raises CannotStart before it started.
    """
    for note in target.notes:
        tell(note)
    _fill_standard_descriptors()
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # or it would not be known how the target ended
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OURS)
    try:
        run = _Run(target, options, out, closing, around)
        status = run.start_and_wait(before)
    finally:
        while signal.sigtimedwait(OURS, 0) is not None:  # came for a target that is no more
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return status


def end_as(status: int) -> int:
    """The exit code of the target, for us to return; does not return if a signal ended it."""
    if status >= 0:
        return status
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass
    return die_of(-status)


def tell(message: str) -> None:
    """One line on stderr, in one write; a name in it is text, whatever it holds."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    _write(f"gpuprof: {line}\n".encode("utf-8", "backslashreplace"))


def _write(text: bytes) -> None:
    try:
        os.write(2, text)
    except OSError:  # no one is left to tell
        pass


def environment(folder: Path | None) -> dict[str, str]:
    """What the target's environment is: ours, and the way to what records."""
    variables = dict(os.environ)
    if folder is None:
        return variables
    inject, path = str(INJECT), variables.get("PYTHONPATH", "")
    if path.split(os.pathsep)[0] != inject:
        # Never an empty entry: it would mean the working directory.
        variables["PYTHONPATH"] = f"{inject}{os.pathsep}{path}" if path else inject
    variables[runfile.RUN_VARIABLE] = str(folder)
    variables.setdefault("TEARDOWN_CUPTI", "1")
    return variables


def _note_inner(folder: Path) -> None:
    """Where another gpuprof trace runs this one, leaves it word of where this one records: it will record nothing."""
    outer = os.environ.get(runfile.RUN_VARIABLE)
    if outer:
        with contextlib.suppress(OSError):
            (Path(outer) / INNER).write_text(str(folder.absolute()), encoding="utf-8", errors="surrogateescape")


def _inner(folder: Path) -> str | None:
    """Where a gpuprof trace inside of the target of this run records."""
    try:
        return (folder / INNER).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None


# -- the run


class _Run:
    def __init__(
        self, target: Target, options: dict[str, Any], out: str | None, closing: Closing, around: Around | None
    ) -> None:
        self._target, self._options, self._closing, self._around = target, options, closing, around
        self._began_ns = time.time_ns()
        self._manifest: dict[str, Any] = {
            "schema": runfile.SCHEMA, "gpuprof": None, "status": "running", "started": self._began_ns, "ended": None,
            "command": [], "cwd": _working_directory(), "python": target.python, "options": options,
            "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ}, "exit": None,
            "host": None,
        }  # fmt: skip
        self._outputs = _outputs()
        self._folder = self._make(target.stem, out)
        if self._folder is not None:
            _note_inner(self._folder)
        self._changed_ns = -1
        self._linked = False
        self._closer: int | None = None
        self._telemetry: Any = None
        self._closed = False
        self._asked_to_end = False
        self._under_nsys: TargetUnderNsys | None = None

    def _make(self, stem: str, out: str | None) -> Path | None:
        """The folder with its manifest, here or where else there is room; None if nowhere."""
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
        guard = Guard()
        try:
            called_off = [n for n in signal.sigpending() & ENDING if signal.getsignal(n) != signal.SIG_IGN]
            if called_off:  # it came too early for the target, which would never hear of it
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
        _let_go()
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
        if self._folder is not None:
            _remove(self._folder)

    def _start(self, mask: set[Any]) -> int:
        if self._around is not None and self._folder is not None:
            return self._start_around(self._around, self._folder, mask)
        argv = list(self._target.argv)
        return os.posix_spawnp(argv[0], argv, environment(self._folder), setsigmask=mask, setsigdef=RESTORED)

    def _start_around(self, around: Around, folder: Path, mask: set[Any]) -> int:
        """Starts Nsight Systems, which is to start the target; it has a log for its words, and a group of its own, so
        that a Ctrl-C reaches the target once, by us."""
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
        watched, warned, left, deadline = False, False, None, None
        while True:
            tick = TICK_S if watched else SOON_S
            info = signal.sigtimedwait(OURS, tick if under_nsys.pid is None else post.patience(tick))
            if info is not None and info.si_signo != signal.SIGCHLD:
                self._asked_to_end = self._asked_to_end or info.si_signo in ENDING
                post.came(info.si_signo, info.si_code)
            under_nsys.listen(0.0)
            if under_nsys.pid and not watched:
                watched = True
                guard.watch(under_nsys.pid)
            if left is None:
                ended, status = _reap(nsys)
                left = status if ended else None
            if left is not None:
                under_nsys.listen(SOON_S)
                if not under_nsys.is_answered and not self._asked_to_end:
                    return self._start_without(under_nsys, guard, mask)
                if under_nsys.status is not None or under_nsys.is_closed or not under_nsys.is_answered:
                    under_nsys.close()
                    return left if under_nsys.status is None else under_nsys.status
            elif under_nsys.status is not None:
                now = time.monotonic()
                deadline = deadline or now + REPORT_S
                if not warned and now > deadline - REPORT_S + PATIENCE_S:
                    warned = True
                    tell("the training has ended; Nsight Systems writes its report (Ctrl-C does without)")
                if now > deadline:
                    tell(f"Nsight Systems did not write its report within {REPORT_S:.0f} s: it is ended")
                    os.killpg(nsys, signal.SIGKILL)
            # Once the target has ended, who wants the end wants that of nsys.
            whom = under_nsys.pid if under_nsys.status is None else nsys if left is None else None
            if whom:
                post.deliver(whom)
            if info is None:
                self._look_safely()

    def _start_without(self, under_nsys: TargetUnderNsys, guard: Guard, mask: set[Any]) -> int:
        """Nsight Systems ended before it had started the target: that runs all the same."""
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
        _let_go()
        return self._wait(pid, guard)

    def _wait(self, pid: int, guard: Guard) -> int:
        post = Post(guard)
        while True:
            info = signal.sigtimedwait(OURS, post.patience(TICK_S))
            if info is None or info.si_signo == signal.SIGCHLD:
                ended, status = _reap(pid)
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
        """Once a tick: what is new in the folder, and what is left to do."""
        if self._folder is None:
            return
        if self._closer is not None and _reap(self._closer)[0]:
            self._closer = None
        if self._telemetry is None and time.time_ns() - self._began_ns > TELEMETRY_AFTER_NS:
            from . import telemetry

            self._telemetry = telemetry.start(self._folder)
        changed_ns = self._folder.stat().st_mtime_ns
        if changed_ns == self._changed_ns:
            return
        self._changed_ns = changed_ns
        ranks = self._ranks()
        if ranks and not self._linked:
            self._linked = True
            point_latest(self._folder)
        if self._closer is None and not self._closed and self._window_closed(ranks):
            self._closer = self._close(running=True, diagnose=True)

    def _describe(self) -> None:
        """Adds to the manifest what takes time, and what the target does not need: it is starting meanwhile."""
        from .. import __version__
        from .machine import describe_host
        from .redact import redact

        if self._folder is None:
            return
        self._manifest["gpuprof"] = __version__
        self._manifest["command"] = redact(self._target.argv)
        self._manifest["host"] = describe_host()
        self._write_manifest(self._folder)

    def _ranks(self) -> list[dict[str, Any]]:
        """What the ranks say of themselves, by rank."""
        assert self._folder is not None
        found = {int(m[1]): m[0] for name in os.listdir(self._folder) if (m := re.fullmatch(_RANK, name))}
        ranks = (runfile.read_json(self._folder / found[rank]) for rank in sorted(found))
        return [rank for rank in ranks if rank is not None]

    def _window_closed(self, ranks: list[dict[str, Any]]) -> bool:
        """Whether the trace of the lowest rank that records is whole."""
        assert self._folder is not None
        for rank in ranks:
            for window in rank.get("windows") or ():
                if isinstance(window, dict) and window.get("window") == "trace":
                    file = str(window.get("file"))
                    return os.path.basename(file) == file and (self._folder / file).is_file()
        return False

    def _close(self, running: bool, diagnose: bool) -> int | None:
        """Starts what reads and compresses the recording."""
        assert self._folder is not None
        self._closed = True
        try:
            command, variables = self._closing(self._folder, running, diagnose)
            # A Ctrl-C is for the training, which may live on; we end this one ourselves.
            return os.posix_spawn(command[0], command, variables, setsigmask=[signal.SIGINT], setsigdef=RESTORED)
        except OSError as error:
            self._log(f"the recording is not read yet: {error}")
            return None

    # -- when it has ended

    def _end(self, status: int, ended: float) -> None:
        folder = self._folder
        if folder is None:
            return
        self._manifest["status"] = _status(status)
        self._manifest["ended"] = int(ended * 1e9)
        self._manifest["exit"] = {
            "code": status if status >= 0 else None,
            "signal": _signal_name(-status) if status < 0 else None,
        }
        self._write_manifest(folder)
        ranks = self._ranks()
        if ranks:
            self._note_native_writes(folder)
        self._tell_failed_allocation(folder)
        if not ranks:
            self._stop_closing()
            inner = _inner(folder)
            if inner:
                tell(f"nothing was recorded here: the target has a gpuprof trace of its own, which records in {inner}")
            elif self._target.recordable:
                tell(NOTHING)
            return
        point_latest(folder)
        if status < 0 or self._asked_to_end:  # who ends it wants it ended, and may soon kill it
            self._stop_closing()
        else:
            self._finish_closing(ranks)
        self._last_words(folder, ranks, ended)

    def _finish_closing(self, ranks: list[dict[str, Any]]) -> None:
        """Waits for what reads the recording; starts it if the target ended too early for that."""
        assert self._folder is not None
        if not self._closed and (self._window_closed(ranks) or _was_captured(ranks)):
            self._closer = self._close(running=False, diagnose=True)
        if not self._await_closing():
            return
        if any(re.fullmatch(runfile.WINDOW_FILE, name) for name in os.listdir(self._folder)):
            self._closer = self._close(running=False, diagnose=False)
            self._await_closing()

    def _await_closing(self) -> bool:
        """Whether it came to its end; anyone who will not wait may interrupt it, and us with it."""
        if self._closer is None:
            return True
        warn_at = time.monotonic() + PATIENCE_S
        while True:
            ended, _ = _reap(self._closer)
            if ended:
                self._closer = None
                return True
            info = signal.sigtimedwait(OURS, TICK_S)
            if info is not None and info.si_signo in ENDING:
                self._stop_closing()
                return False
            if warn_at is not None and time.monotonic() > warn_at:
                warn_at = None
                tell("the training has ended; reading its recording (Ctrl-C leaves that to gpuprof diagnose)")

    def _stop_closing(self) -> None:
        if self._closer is None:
            return
        try:
            os.kill(self._closer, signal.SIGKILL)
            os.waitpid(self._closer, 0)
        except OSError:
            pass
        self._closer = None

    def _tell_failed_allocation(self, folder: Path) -> None:
        """Where the program ran out of the GPU's memory: what says who held it."""
        if any(".oom." in path.name for path in runfile.snapshots_in(folder)):
            point_latest(folder)
            tell(f"an allocation on the GPU failed; who held its memory: gpuprof memory{_as_argument(folder)}")

    def _note_native_writes(self, folder: Path) -> None:
        """Adds files of the working directory that changed during the run, and that no hook in a Python has seen."""
        try:
            from .session_files import files_of_session
            from .written import FILE, append, changed_since

            known = {str(line.get("path")) for line in runfile.read_lines(folder / FILE)}
            here, outputs = _working_directory(), self._outputs | files_of_session()
            without = {runfile.RUNS, folder.name}
            found = changed_since(here, self._began_ns, known, without, outputs) if here else []
            if found:
                append(str(folder / FILE), [("writes", path, None) for path in found])
        except Exception as error:
            self._log(f"looking for what was written: {type(error).__name__}: {error}")

    def _tell_goodput(self, folder: Path) -> None:
        """What the whole run lost outside of usual steps, where they were timed."""
        try:
            from .goodput import goodput, sentence

            found = goodput(folder)
            if found is not None:
                tell(sentence(found))
        except Exception as error:
            self._log(f"the run's goodput: {type(error).__name__}: {error}")

    def _last_words(self, folder: Path, ranks: list[dict[str, Any]], ended: float) -> None:
        """The verdict again, and what to type next; or why there is none."""
        self._tell_goodput(folder)
        verdict = folder / VERDICT
        next_command = f"gpuprof diagnose{_as_argument(folder)}"
        if not any(rank.get("windows") for rank in ranks):
            tell(f"{self._too_short(folder, ranks)}; what there is: {next_command}")
            return
        try:
            if verdict.stat().st_mtime < ended - FRESH_S:
                for line in verdict.read_text(encoding="utf-8").splitlines()[:2]:
                    tell(line)
                if (folder / runfile.REPORT).is_file():
                    tell(f"report: {folder / runfile.REPORT}")
        except (OSError, ValueError):
            pass
        tell(f"next: {next_command}")

    def _too_short(self, folder: Path, ranks: list[dict[str, Any]]) -> str:
        """Why no window was recorded, as far as that is known."""
        from .options import planned
        from .schedule import LONGEST_SETTLE, plan

        first = ranks[0].get("rank")
        taken = sum(1 for line in runfile.read_lines(folder / runfile.STEPS) if line.get("rank") == first)
        several = (ranks[0].get("world_size") or 1) != 1
        needed = plan(**({"settle": LONGEST_SETTLE} | planned(self._options))).needs() + several
        steps = "1 step" if taken == 1 else f"{taken} steps"
        if taken >= needed:
            return f"nothing was traced in {steps} ({runfile.LOG} may say why)"
        return f"nothing was traced: it took {steps}, and {needed} are needed (fewer with --settle 1 --baseline 1)"

    def _log(self, message: str) -> None:
        if self._folder is not None:
            runfile.log(self._folder, message)


def _reap(pid: int) -> tuple[bool, int]:
    """Whether a child has ended, and its exit code, or its signal below zero."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # someone else has reaped it: we were started with SIGCHLD ignored
        return True, 0
    return found == pid, os.waitstatus_to_exitcode(status) if found == pid else 0


def _was_captured(ranks: list[dict[str, Any]]) -> bool:
    """Whether Nsight Systems has recorded steps; its report is read when the run has ended."""
    windows = [window for rank in ranks for window in rank.get("windows") or ()]
    return any(isinstance(window, dict) and window.get("window") == runfile.NSYS for window in windows)


def _last_line(path: Path) -> str:
    """The last words of a log, for a message of one line."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        lines = []
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "it said nothing")


def _fill_standard_descriptors() -> None:
    """Where a shell has closed one (`<&-`), none of our own files may take its number; the target sees it closed."""
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            return


def _let_go() -> None:
    """Of the target's input and output: who reads them must see when the target is done with them."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        try:
            os.dup2(nowhere, descriptor)
        except OSError:
            pass
    os.close(nowhere)


def _outputs() -> set[tuple[int, int]]:
    """Device and inode of what standard output and error are; `_let_go` forgets them."""
    found = set()
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            found.add((status.st_dev, status.st_ino))
    return found


def _remove(folder: Path) -> None:
    """Takes back a folder in which nothing but a manifest can be."""
    try:
        (folder / runfile.MANIFEST).unlink(missing_ok=True)
        folder.rmdir()
    except OSError:
        pass


def _status(status: int) -> str:
    if status == 0:
        return "finished"
    if status in (-signal.SIGINT, 128 + signal.SIGINT):
        return "interrupted"
    return "killed" if status < 0 else "failed"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _as_argument(folder: Path) -> str:
    """The path as it is typed after a command, nothing for the latest run."""
    latest = Path(runfile.RUNS) / runfile.LATEST
    if os.path.realpath(latest) == os.path.realpath(folder):
        return ""
    try:
        relative = os.path.relpath(folder)
    except (OSError, ValueError):
        relative = str(folder)
    path = min(relative, str(folder), key=len)
    if re.fullmatch(r"[\w./@%+=:,-]+", path, re.ASCII):
        return f" {path}"
    import shlex

    return f" {shlex.quote(path)}"
