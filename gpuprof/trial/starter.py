"""Starts a command with fixes applied from outside, waits until it has been timed, and ends all its processes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof import runfile
from gpuprof.devices.find_driver import find_driver
from gpuprof.devices.gpu_driver import GpuDriver
from gpuprof.diagnosis.plug_ins import patches
from gpuprof.errors import GpuprofError
from gpuprof.record.base.redact import redact_text
from gpuprof.record.files.caches import caches
from gpuprof.record.files.scratch import BLOCKED
from gpuprof.record.files.session_files import files_of_session
from gpuprof.record.launcher.command import Target
from gpuprof.record.launcher.target_environment import INJECT
from gpuprof.record.trials.trial_setup import FAILED, PLAN, SANDBOX
from gpuprof.trial import folder_state, guard
from gpuprof.trial.own_flags import OwnFlags
from gpuprof.trial.own_process import own_command
from gpuprof.trial.sandbox.kinds import HOOKS, VARIABLE, Sandbox, sandbox, write_plan
from gpuprof.trial.sandbox.kinds import command as sandboxed
from gpuprof.trial.trial import TimedProcess, TriedFix
from gpuprof.units import Assumed, Bytes, Convention, Lines, MiB, Names, Seconds

LOG = "output.log"
TICK_S: Assumed[Seconds] = 0.05
MOST_SHOWN: Convention[Names] = 5
"""Most changed paths that are named."""
BOX = "box"
"""Name of the sandbox's folder, in a process's folder."""
ENDING_S: Assumed[Seconds] = 10.0
"""Seconds that a sandbox gets to end its processes."""
RANKS_S: Assumed[Seconds] = 60.0
"""Seconds that the other ranks get to write their results after the first has."""
RECORDING_LIMIT_S: Assumed[Seconds] = 1800.0
"""Seconds after which the recording that `gpuprof try` makes itself is given up."""
MEMORY_S: Assumed[Seconds] = 30.0
MEMORY_POLL_S: Assumed[Seconds] = 0.2
MEMORY_MIB: Assumed[MiB] = 256
"""A process waits up to MEMORY_S until GPU memory is free again: no more than MEMORY_MIB above what was used before."""
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|MemoryError|out of memory|Cannot allocate memory", re.IGNORECASE)
OUT_OF_MEMORY = "out of memory"
"""Prefix of the error of a process that ran out of memory."""
NO_INPUT = "EOFError"
"""Raised by Python in a program that reads empty standard input."""
_LAST_LINES: Convention[Lines] = 300
SHORT = "/tmp"
LONGEST_FOLDER: Assumed[Bytes] = 44
"""Scratch folders go to SHORT if the usual path is longer than LONGEST_FOLDER bytes; multiprocessing adds 60."""

QUIET = {
    "PYTHONDONTWRITEBYTECODE": "1", "WANDB_MODE": "disabled", "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "COMET_MODE": "DISABLED", "NEPTUNE_MODE": "debug", "CLEARML_OFFLINE_MODE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRACKIO_DISABLED": "1",
}  # fmt: skip
"""Variables that silence trackers, and keep Python from writing files next to the sources."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Set if connections are blocked, so that libraries use their caches at once."""

LOOPBACK = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
"""Set in a private network, so that this machine's ranks find each other."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one process."""

    process: TimedProcess
    ranks: tuple[dict[str, Any], ...]
    """What each rank wrote, by rank."""
    blocked: tuple[str, ...]
    """What the program was refused."""
    out_of_memory: bool = False
    """Whether it ran out of memory."""

    @property
    def not_applied(self) -> str | None:
        """Why a fix did not take effect on some rank; None if all did on all ranks."""
        for rank in self.ranks:
            for patch in rank.get("patches") or ():
                if not patch.get("applied"):
                    return str(patch.get("text"))
        return None

    @property
    def failure(self) -> str | None:
        """Why its result cannot be used; None if it can."""
        return self.process.error or (None if self.process.step_ns else "it was not timed") or self.not_applied

    @property
    def proof(self) -> str:
        """The first rank's proof that the fixes took effect."""
        return "; ".join(str(patch.get("text")) for patch in (self.ranks[0].get("patches") or ())) if self.ranks else ""


class Starter:
    """Starts the processes of one `gpuprof try`; use it in a `with`, which cleans up."""

    def __init__(
        self, target: Target, network: bool, tree: Path | None = None, tell: Callable[[str], None] | None = None,
        gpu_is_shared: bool = False,
    ) -> None:  # fmt: skip
        """tree: the folder of the user's files, which no process may change; None: it is not compared. tell: prints how
        they are protected. gpu_is_shared: other programs come and go on the GPU, so its memory is not waited for."""
        self._target, self._network, self._tree = target, network, tree
        self._tell = tell or (lambda _: None)
        self.scratch = Path(tempfile.mkdtemp(prefix="gpuprof-try-", dir=_short_folder()))
        self._number = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = False
        """Whether an unknown process may have been started: a signal may arrive before Popen has returned."""
        self._guard: subprocess.Popen[bytes] | None = None
        self._driver = GpuDriver() if gpu_is_shared else find_driver()
        self._used_bytes: int | None = None
        self._control: int | None = None
        """Descriptor that ends the running process when it is closed."""
        self._sandbox = Sandbox(HOOKS)
        self._is_large = False
        """Whether a message has said that the tree is not compared."""
        self._made: list[Path] = []
        """Cache folders that were created for it."""

    def __enter__(self) -> Starter:
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(self.scratch)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._used_bytes = self._driver.used_bytes()
        self._sandbox = sandbox_of(self._network, self._tree)
        self._made = _make_caches() if self._sandbox.keeps_all else []
        self._tell(self._sandbox.line)
        return self

    def __exit__(self, *_: object) -> None:
        # A second Ctrl-C must not leave a training running.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in guard.ENDING}
        try:
            self.end()
            guard.remove_tree(str(self.scratch))
            for folder in self._made:
                with contextlib.suppress(OSError):  # it is not empty
                    folder.rmdir()
            if self._guard is not None and self._guard.stdin is not None:
                with contextlib.suppress(OSError):
                    self._guard.stdin.write(b"done\n")
                    self._guard.stdin.close()
                self._guard.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(
        self,
        fixes: Sequence[TriedFix],
        settle: int | None,
        steps: int | None,
        seconds: float,
        limit_s: float,
        flags: Mapping[TriedFix, OwnFlags] | None = None,
        gate: Path | None = None,
        brief: bool = False,
    ) -> Outcome:
        """One process: started, timed and ended. Raises GpuprofError if it changed the user's files.

        limit_s: time after which it is given up. flags: the fixes that the program's own flags make; all others are
        patches. gate: what it waits for after its first step. brief: no more than `settle` steps come before the timed
        ones.
        """
        by_flag = {fix: flags[fix] for fix in fixes if flags and fix in flags}
        argv = self._target.argv
        for own in by_flag.values():
            argv = own.applied_to(argv)
        name = " + ".join(map(str, fixes))
        folder = self._make_folder({
            "fixes": [
                {
                    "name": one.name, "value": one.value, "by_flag": _settings(by_flag.get(one)),
                    "path": self._copied(one),
                }
                for one in fixes
            ],
            "allowed": [], "settle": settle, "steps": steps, "seconds": seconds,
            "gate": None if gate is None else str(gate), "brief": brief,
        })  # fmt: skip
        self._await_memory()
        with self._files_compared():
            begun, begun_ns = time.monotonic(), time.time_ns()
            try:
                why = self._start_and_wait(folder, argv, self._environment(folder, name), limit_s)
            finally:
                self.end()
            wall_ns = int((time.monotonic() - begun) * 1e9)
        ranks = _results(folder)
        blocked = [redact_text(line) for line in _lines(folder / BLOCKED)]
        error = next((str(rank["error"]) for rank in ranks if rank.get("error")), None) or why
        if error is not None:
            error = _explained(error) if ranks and why is None else redact_text(error)
        for part in ("files", BOX):
            guard.remove_tree(str(folder / part))
        return Outcome(
            _process(name, ranks, error, wall_ns, begun_ns), tuple(ranks), tuple(dict.fromkeys(blocked)),
            out_of_memory=error is not None and _OUT_OF_MEMORY.search(error) is not None,
        )  # fmt: skip

    def record(self, words: Sequence[str], limit_s: float = RECORDING_LIMIT_S) -> str | None:
        """Runs `gpuprof trace --stop` with these words, its verdict on stderr; what the program writes goes to scratch.

        Returns why the program failed, as far as that is known; None if it did not. Raises GpuprofError if it changed
        the user's files, or took longer than limit_s.
        """
        runs = Path(runfile.RUNS).absolute()
        runs.mkdir(exist_ok=True)
        folder = self._make_folder({"fixes": [], "allowed": [str(runs)]})
        argv = own_command("trace", "--stop", "--no-report", *words)
        environment = self._environment(folder, "recorded")
        # `gpuprof trace` arms the target; it must not be armed itself.
        environment.pop("PYTHONPATH")
        if path := os.environ.get("PYTHONPATH"):
            environment["PYTHONPATH"] = path
        with self._files_compared():
            try:
                self._start(argv, environment, 2 if sys.stderr is not None else subprocess.DEVNULL).wait(limit_s)
            except subprocess.TimeoutExpired:
                raise GpuprofError(
                    f"the recording took longer than {limit_s:.0f} s and was given up: record the command with gpuprof "
                    "trace, then try again"
                ) from None
            finally:
                self.end()
                with contextlib.suppress(OSError):  # the run is in it
                    runs.rmdir()
        failed = runfile.read_json(folder / FAILED) or {}
        return _explained(str(failed["error"])) if failed.get("error") else None

    @contextlib.contextmanager
    def _files_compared(self) -> Iterator[None]:
        """Raises GpuprofError, with the names, if the user's files differ after the process."""
        if self._tree is None or self._sandbox.keeps_all:
            yield
            return
        outputs = files_of_session()
        before = folder_state.state_of(self._tree, self.scratch, outputs)
        if before is None and not self._is_large:
            self._is_large = True
            self._tell(
                f"{self._tree} holds more than {folder_state.MOST_FILES:,} files: they are not compared before and "
                "after a process, so changes by native code or another program are not noticed"
            )
        yield
        changed = folder_state.changes(before, folder_state.state_of(self._tree, self.scratch, outputs))
        if changed:
            more = f" and {len(changed) - MOST_SHOWN} more" if len(changed) > MOST_SHOWN else ""
            raise GpuprofError(
                f"while the program ran it {', '.join(changed[:MOST_SHOWN])}{more}, outside the scratch folder (native "
                "code or another program did it): --yes continues anyway"
            )

    def _copied(self, fix: TriedFix) -> str | None:
        """A copy of a plug-in's patch that the process can read wherever gpuprof is installed; None for gpuprof's own
        patches."""
        path = patches().get(fix.name)
        if path is None:
            return None
        copy = self.scratch / "patches" / f"{fix.name}.py"
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)
        return str(copy)

    def _make_folder(self, plan: dict[str, Any]) -> Path:
        """Creates a folder for one more process, with its instructions."""
        self._number += 1
        folder = self.scratch / str(self._number)
        (folder / "tmp").mkdir(parents=True)
        (folder / "files").mkdir()
        whole = {
            **plan, "scratch": str(folder / "files"), "network": self._network,
            "allowed": [str(self.scratch), *caches(), *plan["allowed"]],
        }  # fmt: skip
        runfile.write_json(folder / PLAN, whole)
        return folder

    def _environment(self, folder: Path, name: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GPUPROF_")}
        path = kept.get("PYTHONPATH", "")
        # Compiled code of a variant is shared by its processes: only the first compiles, like a user's first run.
        compiled = self.scratch / "compiled" / re.sub(r"\W+", "_", name)
        alone = {} if self._network else OFFLINE | (LOOPBACK if self._sandbox.keeps_all else {})
        return {
            **kept, **QUIET, **alone,
            "PYTHONPATH": f"{INJECT}{os.pathsep}{path}" if path else str(INJECT),
            "TMPDIR": str(folder / "tmp"), "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"),
            "TRITON_CACHE_DIR": str(compiled / "triton"), "MLFLOW_TRACKING_URI": f"file:{folder}/mlruns",
            runfile.TRIAL_VARIABLE: str(folder),
        }  # fmt: skip

    def _start_and_wait(
        self, folder: Path, argv: Sequence[str], environment: dict[str, str], limit_s: float
    ) -> str | None:
        """None once every rank has written its result; else the reason."""
        with (folder / LOG).open("wb") as log:
            try:
                process = self._start(argv, environment, log, subprocess.STDOUT)
            except OSError as error:
                return f"{argv[0]}: cannot be started ({error.strerror})"
        end, first_seen = time.monotonic() + limit_s, None
        while True:
            over = process.poll() is not None
            ranks = _results(folder)
            if ranks:
                if len(ranks) >= int(ranks[0].get("world_size") or 1):
                    return None
                first_seen = first_seen or time.monotonic()
                if time.monotonic() - first_seen > RANKS_S:
                    return "the other ranks did not reach the same step"
            if over:
                return None if _results(folder) else _why(folder, process.returncode)
            if time.monotonic() > end:
                return f"it took longer than {limit_s:.0f} s and was given up"
            time.sleep(TICK_S)

    def _start(
        self, argv: Sequence[str], environment: dict[str, str], output: Any, errors: Any = None
    ) -> subprocess.Popen[bytes]:
        if shutil.which(argv[0], path=environment.get("PATH")) is None:
            raise FileNotFoundError(2, os.strerror(2), argv[0])
        folder = Path(environment[runfile.TRIAL_VARIABLE])
        real = [str(self.scratch), *runfile.read_json(folder / PLAN)["allowed"]]  # type: ignore[index]
        plan = write_plan(folder / BOX, folder / SANDBOX, real, self._network, self._tree is None)
        self._starting = True
        reads, self._control = os.pipe()
        try:
            self._process = process = subprocess.Popen(
                sandboxed(plan, reads, list(argv)), env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=errors, start_new_session=True, pass_fds=(reads,),
            )  # fmt: skip
        except OSError:
            self._starting = False
            raise
        finally:
            os.close(reads)
        self._starting = False
        return process

    def end(self) -> None:
        """Kills every process that was started with our folder, in any process group."""
        process, self._process = self._process, None
        starting, self._starting = self._starting, False
        control, self._control = self._control, None
        if control is not None:
            os.close(control)
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_S)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            guard.kill_all(str(self.scratch))
            process.wait()
        elif starting:
            guard.kill_all(str(self.scratch), watch_s=guard.STARTING_S)

    def _await_memory(self) -> None:
        """Waits until the GPUs have about as much free memory as before the first process."""
        if self._used_bytes is None:
            return
        end = time.monotonic() + MEMORY_S
        while time.monotonic() < end:
            now = self._driver.used_bytes()
            if now is None or now <= self._used_bytes + (MEMORY_MIB << 20):
                return
            time.sleep(MEMORY_POLL_S)


def _settings(own: OwnFlags | None) -> dict[str, Any] | None:
    return None if own is None else dict(own.settings)


def sandbox_of(network: bool, tree: Path | None) -> Sandbox:
    """The sandbox that this machine allows. tree: as for Starter."""
    return sandbox(network, tree is None, os.environ.get(VARIABLE) or "")


def _make_caches() -> list[Path]:
    """Creates missing download folders, so that a sandbox can show them; returns those created."""
    made = []
    for path in map(Path, caches()):
        if path.name not in (".triton", ".nv", "matplotlib") and not os.path.lexists(path):
            with contextlib.suppress(OSError):
                path.mkdir()
                made.append(path)
    return made


def _short_folder() -> str | None:
    """Parent of the scratch folder: it must be short, as sockets below it may have paths of at most 107 bytes."""
    usual = tempfile.gettempdir()
    short = len(os.fsencode(usual)) <= LONGEST_FOLDER or not os.access(SHORT, os.W_OK | os.X_OK)
    return None if short else SHORT


def _process(name: str, ranks: list[dict[str, Any]], error: str | None, wall_ns: int, begun_ns: int) -> TimedProcess:
    """One process from its ranks: the step of the slowest rank, the memory of the fullest."""
    timed = [rank for rank in ranks if rank.get("mean_ns")]
    if not timed or error is not None:
        return TimedProcess(name, None, None, 0, None, None, wall_ns, error or "nothing was timed")
    slowest = max(timed, key=lambda rank: rank["mean_ns"])
    width = slowest.get("half_width_ns")
    peaks = [rank["peak_bytes"] for rank in ranks if rank.get("peak_bytes")]
    return TimedProcess(
        name, round(slowest["mean_ns"]), None if width is None else round(width), int(slowest["steps"]),
        max(peaks, default=None), int(slowest["first_unix_ns"]) - begun_ns, wall_ns, None,
        slowest.get("other_cpus"), slowest.get("idle_cpus"),
    )  # fmt: skip


def _results(folder: Path) -> list[dict[str, Any]]:
    found = [runfile.read_json(path) for path in folder.glob("rank*.trial.json")]
    return sorted((one for one in found if one is not None), key=lambda one: int(one.get("rank") or 0))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _why(folder: Path, code: int) -> str:
    """Why a process ended without having been timed: its last error, or the last line of its output."""
    lines = [line.strip() for line in _lines(folder / LOG)[-_LAST_LINES:] if line.strip()]
    for line in reversed(lines):
        if _OUT_OF_MEMORY.search(line) or line.startswith(NO_INPUT):
            return _explained(line)
    said = next((line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception|Blocked)\b", line)), None)
    said = said or (lines[-1] if lines else "it said nothing")
    if code == 0 and "Error" not in said:
        return "it ended without an optimizer step in a Python with torch"
    ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"it failed ({ended}): {redact_text(said)[:300]}"


def _explained(text: str) -> str:
    """An error, preceded by its meaning if known."""
    text = redact_text(" ".join(text.split()))[:300]
    if text.startswith(NO_INPUT):
        return f"it reads standard input, which is empty in a trial: pass what it asks for as arguments ({text})"
    return f"{OUT_OF_MEMORY}: {text}" if _OUT_OF_MEMORY.search(text) and not text.startswith(OUT_OF_MEMORY) else text
