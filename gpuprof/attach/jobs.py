"""The armed trainings of this user on this machine, and those that the user names."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof import runfile
from gpuprof.attach import attachable
from gpuprof.errors import GpuprofError
from gpuprof.hang.process_state import life_of
from gpuprof.record.entry import local_channel
from gpuprof.record.entry.local_channel import Message

_RANK = re.compile(r"rank\d{1,6}\.json")


@dataclass(frozen=True, slots=True)
class ArmedProcess:
    """An armed process, as it described itself."""

    pid: int
    name: str
    """Name of its program's file."""
    job: str
    """What the ranks of one job on this machine have in common."""
    rank: int
    world_size: int
    step: int
    """Optimizer steps that have ended."""
    total: int | None
    """How many there will be, if known."""
    step_ns: int | None
    """Mean of the last steps."""
    since_ns: int | None
    """Time since the last step ended."""
    state: str
    """armed, waiting (for a step at which to begin) or recording."""
    folder: str | None
    """Folder of the current recording."""
    stage: str | None
    """Stage of the current recording."""
    why: str
    """Why the last recording could not begin; empty if it did."""
    socket: Path

    def ask(self, **request: Any) -> Message:
        """Its answer to a request. Raises OSError if it does not answer."""
        return local_channel.ask(self.socket, request)

    def now(self) -> ArmedProcess:
        """The current state of the same process. Raises OSError if it does not answer."""
        return job_of(self.ask(do="status"), self.socket)

    @property
    def is_alive(self) -> bool:
        """Whether the process still exists."""
        return life_of(self.pid) not in ("dead", "unknown")


def armed() -> list[ArmedProcess]:
    """All armed processes, by pid. Sockets of processes that have ended are removed."""
    here = local_channel.pid_namespace()
    found: list[ArmedProcess] = []
    for folder in local_channel.folders():
        if local_channel.why_not_private(folder) is not None:
            continue
        for path in sorted(folder.iterdir()):
            parts = local_channel.NAME.fullmatch(path.name)
            if parts is None or int(parts[2]) != (here or 0):
                continue
            try:
                found.append(job_of(local_channel.ask(path, {"do": "status"}), path))
            except OSError:
                if life_of(int(parts[1])) == "dead":
                    with contextlib.suppress(OSError):
                        path.unlink()
    return sorted(found, key=lambda one: one.pid)


def job_of(said: Message, socket: Path) -> ArmedProcess:
    """Validates a process's description of itself. Raises Refused if it makes no sense."""
    progress = said.get("progress")
    stage = progress.get("stage") if isinstance(progress, dict) else None
    try:
        return ArmedProcess(
            pid=_whole(said["pid"]), name=str(said["name"])[:100], job=str(said["job"])[:300],
            rank=_whole(said["rank"]), world_size=_whole(said["world_size"]), step=_whole(said["step"]),
            total=_maybe(said["total"]), step_ns=_maybe(said["step_ns"]), since_ns=_maybe(said["since_ns"]),
            state=str(said["state"])[:20], folder=None if said["folder"] is None else str(said["folder"])[:4096],
            stage=None if stage is None else str(stage)[:40], why=str(said["why"])[:1000], socket=socket,
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise local_channel.Refused(f"{socket.name} sent an answer that is not understood ({error!r})") from None


def named(place: str) -> list[ArmedProcess]:
    """The ranks of the job that a user means by a process id or a run's folder, lowest rank first.

    A launcher stands for the processes that it started. Raises GpuprofError, one line, if there are none.
    """
    jobs = armed()
    pids = [int(place)] if place.isdigit() and len(place) <= 10 and not Path(place).exists() else _pids_of(Path(place))
    found = [one for one in jobs if one.pid in pids] or [one for one in jobs if _is_below(one.pid, pids)]
    if not found:
        for pid in pids:
            attachable.check(pid)
            raise GpuprofError(attachable.why_not_armed(pid))
    return ranks_of(found[0], jobs)


def ranks_of(job: ArmedProcess, jobs: list[ArmedProcess]) -> list[ArmedProcess]:
    """All ranks of a job among `jobs`, itself included, lowest first."""
    if job.world_size <= 1:
        return [job]
    return sorted((one for one in jobs if one.job == job.job), key=lambda one: one.rank)


def _pids_of(folder: Path) -> list[int]:
    """The processes named in a run's folder. Raises GpuprofError if it is not one."""
    try:
        files = sorted(path for path in folder.iterdir() if _RANK.fullmatch(path.name))
    except OSError:
        raise GpuprofError(f"{folder}: no such process or folder; name a process id, or the folder of a run") from None
    facts = (runfile.read_json(path) or {} for path in files)
    pids = [pid for one in facts if isinstance(pid := one.get("pid"), int)]
    if not pids:
        raise GpuprofError(f"{folder}: not a run folder that names the processes of its ranks")
    return pids


def _is_below(pid: int, ancestors: list[int]) -> bool:
    """Whether a process descends from one of these."""
    for _ in range(20):
        parent = attachable.parent_of(pid)
        if parent is None or parent <= 1:
            return False
        if parent in ancestors:
            return True
        pid = parent
    return False


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{str(value)[:50]!r} is not a whole number")
    return value


def _maybe(value: object) -> int | None:
    return None if value is None else _whole(value)
