"""Why a process cannot be attached to, read from /proc."""

from __future__ import annotations

import os
import pwd
import re
import sys
from pathlib import Path

from gpuprof.errors import GpuprofError
from gpuprof.hang.process_state import environment_of, life_of
from gpuprof.record.entry.on_demand import VARIABLE, is_wanted
from gpuprof.units import Published, Version

HOW_TO_ARM = "start it with gpuprof trace --on-demand, or put import gpuprof; gpuprof.on_demand() at its beginning"
_PYTHON = re.compile(r"(?:lib)?python(\d)\.(\d+)")
FIRST_JOINABLE: Published[tuple[Version, Version]] = (3, 14)
"""The first Python that can execute a file in another process (sys.remote_exec)."""


def check(pid: int) -> None:
    """Raises GpuprofError, one line, if there is no such process, or it is another user's or in another container.
    Only needed for a process that does not answer: one whose socket answers is reachable.
    """
    if life_of(pid) in ("dead", "unknown"):
        raise GpuprofError(f"there is no process {pid}")
    owner = _owner(pid)
    if owner is not None and owner != os.getuid():
        raise GpuprofError(f"process {pid} belongs to user {_name_of(owner)}: run gpuprof attach as that user")
    if is_elsewhere(pid):
        raise GpuprofError(
            f"process {pid} runs in another container: run gpuprof attach in it (docker exec, kubectl exec)"
        )


def why_not_armed(pid: int) -> str:
    """Why a process does not answer, and what to do, in one line."""
    libraries = _maps(pid)
    name = _command(pid)
    if not _PYTHON.search(libraries) and "python" not in name:
        return f"process {pid} ({name or '?'}) is no Python"
    if is_wanted(environment_of(pid, VARIABLE)):
        return f"process {pid} is armed, and has taken no optimizer step yet: try again once it trains"
    if "libtorch" not in libraries:
        return f"process {pid} ({name or '?'}) has not loaded torch: name the process that trains"
    version = python_of(pid)
    if version is not None and version >= FIRST_JOINABLE:
        return (
            f"process {pid} is not armed, and only a gpuprof under Python {version[0]}.{version[1]} can join it: "
            f"{HOW_TO_ARM}"
        )
    return f"process {pid} is not armed: {HOW_TO_ARM}"


def can_join(pid: int) -> bool:
    """Whether this Python can run a file in that process: both must be of one version that supports it."""
    return hasattr(sys, "remote_exec") and python_of(pid) == sys.version_info[:2] and "libtorch" in _maps(pid)


def python_of(pid: int) -> tuple[int, int] | None:
    """(major, minor) of a process's Python, from the names of its program and libraries; None if they do not show
    it."""
    found = _PYTHON.search(_maps(pid))
    return (int(found[1]), int(found[2])) if found else None


def is_elsewhere(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process has a different pid namespace, or sees different file systems, from this one. proc: where /proc
    is mounted."""
    for kind in ("pid", "mnt"):
        try:
            if (proc / str(pid) / "ns" / kind).stat().st_ino != (proc / "self" / "ns" / kind).stat().st_ino:
                return True
        except OSError:  # not readable
            continue
    return False


def parent_of(pid: int) -> int | None:
    """The process that started it; None where that is not known."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _owner(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _maps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return Path(words[0].decode("utf-8", "replace")).name
