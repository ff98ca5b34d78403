"""A recording in running processes, controlled from outside: requested, followed to its end, or called off."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprof import runfile
from gpuprof.attach.jobs import ArmedProcess
from gpuprof.errors import GpuprofError
from gpuprof.record.base.options import DEFAULTS
from gpuprof.record.base.redact import redact
from gpuprof.record.launcher import telemetry
from gpuprof.record.launcher.command import CannotStart
from gpuprof.record.launcher.folder import make_folder, point_latest
from gpuprof.record.launcher.machine import describe_host
from gpuprof.units import Assumed, Calls, Seconds

LOOK_S: Assumed[Seconds] = 0.2
AHEAD_S: Assumed[Seconds] = 1.5
"""The ranks of a job begin recording this many seconds from now, so that all have received the request by then."""
MOST_TRIES: Assumed[Calls] = 3
"""Attempts to agree on a step, each further ahead, if a rank had already passed it."""
STANDSTILL_S: Assumed[Seconds] = 60.0
"""A message is printed after no step has ended for this many seconds."""
STAGES = {
    "settle": "waiting until its steps have settled",
    "baseline_free": "timing unprofiled steps",
    "baseline_sync": "timing steps that each end in a synchronisation",
    "sampling": "sampling its Python functions",
    "warmup": "starting the profiler",
    "trace": "recording",
    "stacks": "recording with Python stacks",
    "after": "recorded",
}
"""Stage of a recording → message printed when it begins."""


@dataclass(slots=True)
class Opened:
    """An open recording. ranks: the processes that record, lowest rank first."""

    folder: Path
    ranks: list[ArmedProcess]
    _telemetry: Any = None
    _said: set[str] = field(default_factory=set)
    _standing: bool = False

    def follow(self, say: Callable[[str], None]) -> None:
        """Waits until the steps are recorded in every rank. Raises GpuprofError if that will not happen."""
        while not self.is_recorded():
            time.sleep(LOOK_S)
            for one in self.ranks:
                try:
                    now = one.now()
                except OSError:
                    if self.is_recorded():
                        return
                    if one.is_alive and _answers(one):
                        continue
                    raise GpuprofError(
                        f"process {one.pid} ended before its steps were recorded: nothing is diagnosed"
                    ) from None
                if one is self.ranks[0]:
                    self._tell(now, say)
                if now.folder != str(self.folder) and not self.is_recorded():
                    raise GpuprofError(f"process {one.pid} recorded nothing: {now.why or self._note(one)}")

    def _tell(self, now: ArmedProcess, say: Callable[[str], None]) -> None:
        if now.stage in STAGES and now.stage not in self._said:
            self._said.add(now.stage)
            say(f"step {now.step:,}: {STAGES[now.stage]}")
        stands = (now.since_ns or 0) > STANDSTILL_S * 1e9
        if stands and not self._standing:
            say(
                f"no step has ended for {STANDSTILL_S:.0f} s after step {now.step:,}; gpuprof hang {now.pid} says where"
            )
        self._standing = stands

    def is_recorded(self) -> bool:
        """Whether every rank has written its window."""
        return all(_has_window(self.folder, one.rank) for one in self.ranks)

    def _note(self, one: ArmedProcess) -> str:
        notes = (runfile.read_json(self.folder / runfile.rank_file(one.rank)) or {}).get("notes") or []
        return str(notes[-1]) if notes else f"{self.folder / runfile.LOG} may say why"

    def leave(self, patience_s: float) -> bool:
        """Waits until the processes have removed their hooks; asks those that have not after `patience_s` to do so.
        Returns whether all have."""
        until = time.monotonic() + patience_s
        while any(_records(one, self.folder) for one in self.ranks):
            if time.monotonic() > until:
                return self.call_off()
            time.sleep(LOOK_S)
        return True

    def call_off(self) -> bool:
        """Makes every process end its recording at the end of its step. Returns whether all have."""
        for one in self.ranks:
            with contextlib.suppress(OSError):
                one.ask(do="stop")
        for one in self.ranks:
            until = time.monotonic() + 2 * (one.step_ns or 0) / 1e9 + 2.0
            while _records(one, self.folder) and time.monotonic() < until:
                time.sleep(LOOK_S)
        return not any(_records(one, self.folder) for one in self.ranks)

    def close(self, status: str) -> None:
        """Writes down how it ended. status: as manifest.json has it."""
        telemetry.stop(self._telemetry)
        manifest = runfile.read_json(self.folder / runfile.MANIFEST)
        if manifest is not None:
            with contextlib.suppress(OSError):
                ended = {"status": status, "ended": time.time_ns()}
                runfile.write_json(self.folder / runfile.MANIFEST, manifest | ended)


def open_recording(ranks: Sequence[ArmedProcess], options: dict[str, Any], out: str | None) -> Opened:
    """Makes all these processes, the ranks of one job, record the same steps. options: those that differ from the
    defaults. out: the run folder, new or empty. Raises GpuprofError, one line, if one of them refuses."""
    folder = _make(ranks[0], DEFAULTS | options, out)
    try:
        _ask_all(ranks, folder)
    except BaseException:
        _take_back(folder)
        raise
    point_latest(folder)
    opened = Opened(folder, list(ranks))
    opened._telemetry = telemetry.start(folder)
    return opened


def _ask_all(ranks: Sequence[ArmedProcess], folder: Path) -> None:
    ahead_s = AHEAD_S
    for _ in range(MOST_TRIES):
        at_step = 0
        if len(ranks) > 1:
            now = [_now(one) for one in ranks]
            step_s = max((one.step_ns or 0) / 1e9 for one in now)
            at_step = max(one.step for one in now) + 1 + (math.ceil(ahead_s / step_s) if step_s else 1)
        answers = [_ask(one, folder, at_step) for one in ranks]
        refused = [(one, said) for one, said in zip(ranks, answers, strict=True) if said.get("ok") is not True]
        if not refused:
            return
        for one, said in zip(ranks, answers, strict=True):
            if said.get("ok") is True:
                with contextlib.suppress(OSError):
                    one.ask(do="stop")
        if not all(said.get("late") is True for _, said in refused):
            one, said = next(pair for pair in refused if pair[1].get("late") is not True)
            raise GpuprofError(f"process {one.pid} {str(said.get('error'))[:500]}")
        ahead_s *= 4
    raise GpuprofError("the ranks could not agree on a step to begin with: their steps are too short, or drift apart")


def _now(one: ArmedProcess) -> ArmedProcess:
    try:
        return one.now()
    except OSError as error:
        raise GpuprofError(f"process {one.pid} does not answer ({error}): has it ended?") from None


def _ask(one: ArmedProcess, folder: Path, at_step: int) -> dict[str, Any]:
    try:
        return one.ask(do="record", folder=str(folder), at_step=at_step, by=os.getpid())
    except OSError as error:
        return {"error": f"does not answer ({error}): has it ended?"}


def _make(job: ArmedProcess, options: dict[str, Any], out: str | None) -> Path:
    stem = Path(job.name).stem or "job"
    try:
        folder = make_folder(f"{stem}_{job.pid}", out)
        runfile.write_json(folder / runfile.MANIFEST, _manifest(job, options))
    except CannotStart as error:
        raise GpuprofError(str(error)) from None
    except OSError as error:
        raise GpuprofError(f"no run folder can be made here ({error.strerror}): name one with --out") from None
    return folder


def _manifest(job: ArmedProcess, options: dict[str, Any]) -> dict[str, Any]:
    from gpuprof import __version__

    return {
        "schema": runfile.SCHEMA, "gpuprof": __version__, "status": "running", "started": time.time_ns(),
        "ended": None, "command": redact(_command(job.pid)), "cwd": _link(job.pid, "cwd"),
        "python": _link(job.pid, "exe"), "options": options, "variables": {}, "exit": None, "host": describe_host(),
    }  # fmt: skip


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _link(pid: int, name: str) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/{name}").readlink())
    except OSError:
        return None


def _take_back(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / runfile.MANIFEST).unlink(missing_ok=True)
        folder.rmdir()


def _has_window(folder: Path, rank: int) -> bool:
    facts = runfile.read_json(folder / runfile.rank_file(rank)) or {}
    windows = facts.get("windows")
    return isinstance(windows, list) and any(
        isinstance(one, dict) and one.get("window") == "trace" and one.get("steps") for one in windows
    )


def _records(one: ArmedProcess, folder: Path) -> bool:
    try:
        return one.now().folder == str(folder)
    except OSError:
        return False


def _answers(one: ArmedProcess) -> bool:
    """Whether a process that did not answer once answers on another try: it may hold the GIL for seconds."""
    for _ in range(10):
        time.sleep(LOOK_S)
        try:
            one.now()
            return True
        except OSError:
            if not one.is_alive:
                return False
    return one.is_alive
