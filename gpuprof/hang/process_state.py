"""A process's state from the operating system, and its Python stack if py-spy is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from gpuprof.errors import GpuprofError
from gpuprof.hang.rank_state import Life
from gpuprof.hang.stacks import ThreadStack, parse
from gpuprof.units import Assumed, Seconds

SPY_S: Assumed[Seconds] = 20.0
"""Seconds that py-spy gets for one process."""


def life_of(pid: int) -> Life:
    """From /proc: a zombie is dead; "unknown" without /proc."""
    if not Path("/proc/self").exists():
        return "unknown"
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "dead"
    except OSError:
        return "unknown"
    state = text.rpartition(")")[2].split()[:1]
    return {"T": "stopped", "t": "stopped", "Z": "dead", "X": "dead"}.get("".join(state), "running")  # pyright: ignore[reportReturnType]


def environment_of(pid: int, variable: str) -> str | None:
    """A variable of a process's initial environment; None if it is not set or cannot be read."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    return next((part.partition("=")[2] for part in text.split("\0") if part.startswith(f"{variable}=")), None)


def check(pid: int) -> None:
    """Raises GpuprofError, one line, if there is no such process or it is not Python."""
    if life_of(pid) == "dead":
        raise GpuprofError(f"there is no process {pid}")
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode("utf-8", "replace")
    except OSError as error:
        raise GpuprofError(f"process {pid} cannot be examined ({error.strerror}): it may be another user's") from None
    if not re.search(r"python", command) and "python" not in _loaded(pid):
        raise GpuprofError(f"process {pid} ({Path(command).name or '?'}) is no Python")


def _loaded(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "python"  # not readable: assume Python


def spy() -> str | None:
    """Path of py-spy: next to this Python, or on PATH."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def stack_of(pid: int) -> tuple[ThreadStack | None, str | None]:
    """(a process's Python stack or None, why there is none or None)."""
    tool = spy()
    if tool is None:
        return None, "its stack is not known: py-spy can read it (pip install py-spy)"
    try:
        found = subprocess.run(
            [tool, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=SPY_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"py-spy failed ({type(error).__name__})"
    stack = parse(found.stdout)
    if stack is None:
        said = (found.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return None, f"py-spy could not read its stack: {said[:200]}"
    return stack, None
