"""Arms a running process that the user names, if its Python supports that.

`sys.remote_exec` (Python 3.14) runs a file in another process of the same version; it needs the right to trace that
process. With an older Python the tests have a training run that file itself.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gpuprof.attach import attachable
from gpuprof.attach.jobs import ArmedProcess, named
from gpuprof.errors import GpuprofError
from gpuprof.units import Assumed, Seconds

ANSWER_S: Assumed[Seconds] = 60.0
"""Seconds within which a training must end a step after it has been joined."""
LOOK_S: Assumed[Seconds] = 0.2
_PACKAGE = Path(__file__).parents[1]
_FILE = """import sys
if "_gpuprof" not in sys.modules:
    package = type(sys)("_gpuprof")
    package.__path__ = [{package!r}]
    sys.modules["_gpuprof"] = package
from _gpuprof.record.entry import on_demand
on_demand.join()
"""


def file_to_run() -> str:
    """The text of the file that arms the process that runs it. It loads the recorder under a private name."""
    return _FILE.format(package=str(_PACKAGE))


def ranks_named(place: str, say: Callable[[str], None]) -> list[ArmedProcess]:
    """Like `named`, but joins a process that is not armed where that is possible. Raises GpuprofError."""
    pid = int(place) if place.isdigit() and len(place) <= 10 else None
    try:
        return named(place)
    except GpuprofError:
        if pid is None or attachable.is_elsewhere(pid) or not attachable.can_join(pid):
            raise
    with tempfile.NamedTemporaryFile("w", prefix="gpuprof-join-", suffix=".py", encoding="utf-8") as file:
        file.write(file_to_run())
        file.flush()
        _join(pid, file.name)
        say(f"process {pid} was joined: waiting for its step to end")
        until = time.monotonic() + ANSWER_S
        while time.monotonic() < until:
            with contextlib.suppress(GpuprofError):
                return named(place)
            time.sleep(LOOK_S)
    raise GpuprofError(f"process {pid} took no optimizer step within {ANSWER_S:.0f} s of being joined")


def _join(pid: int, path: str) -> None:
    """Makes a process run a file. Raises GpuprofError where the system forbids it."""
    try:
        sys.remote_exec(pid, path)  # type: ignore[attr-defined]
    except (OSError, RuntimeError) as error:
        raise GpuprofError(
            f"process {pid} cannot be joined ({error}): gpuprof needs the right to trace it "
            "(kernel.yama.ptrace_scope=0, CAP_SYS_PTRACE), or arm it at its start"
        ) from None
