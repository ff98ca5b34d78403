"""Samples the state of the GPUs and the machine a few times a second, in a separate process.

    python -m gpuprof.record.launcher.telemetry RUN

It is not a thread of the training, which would compete with it for the GIL. It ends with the process that started it,
when its stdin ends or its parent changes, and also when the run folder is gone or the disk is full. Values that the
driver does not report are null; without a driver that can be sampled the lines list no GPUs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ... import runfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.devices.gpu_driver import GpuDriver
    from gpuprof.units import Assumed, Bytes, Seconds


KEPT_BACK_S: Assumed[Seconds] = 1.0
"""Lines are buffered for this long, so that the file is opened once a second and not for each line."""

FIRST_LINES_S: Assumed[Seconds] = 0.25
SELDOM_S: Assumed[Seconds] = 1.0
RARELY_S: Assumed[Seconds] = 10.0
"""Seconds between lines: in the first minutes, after that, and when the file has become large."""
FIRST_MINUTES_S: Assumed[Seconds] = 600.0
LARGEST_FILE_BYTES: Assumed[Bytes] = 50 << 20
"""No line is added to a file of this size; from half of it on, lines are rare."""

_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
"""Signals sent to a whole job or terminal are for the training, which may run on for a while; so must this."""

_INJECT = Path(__file__).parents[1] / "inject"
_PACKAGE = Path(__file__).parents[2]

_START = """\
import sys
if sys.path[0] == "": del sys.path[0]
import types
package = types.ModuleType("_gpuprof_telemetry")
package.__path__ = [sys.argv[1]]
sys.modules["_gpuprof_telemetry"] = package
from _gpuprof_telemetry.record.launcher import telemetry
sys.exit(telemetry.main(sys.argv[2:]))
"""
"""Runs this file by its path, since its import name depends on the process that starts it. The working directory is
taken off the path: it may hold a `types.py`."""


# ---- for the process that records


def start(run_folder: str | os.PathLike[str]) -> subprocess.Popen[bytes] | None:
    """Starts a process that samples into a run folder until `stop`, or until this process ends. None if that fails."""
    folder = Path(run_folder).absolute()
    if not sys.executable:
        return None
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _START, str(_PACKAGE), str(folder), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,
            bufsize=0,
        )
    except Exception as error:
        runfile.log(folder, f"no telemetry: {error!r}")
        return None


def stop(process: subprocess.Popen[bytes] | None, wait_s: float = 3.0) -> None:
    """Ends a sampler, which writes what it has, unless a call to the driver blocks it for longer than `wait_s`."""
    if process is None:
        return
    with contextlib.suppress(Exception):
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(wait_s)


def _environment() -> dict[str, str]:
    """Our environment without the variables that would arm the sampler as a training."""
    values = dict(os.environ)
    values.pop(runfile.RUN_VARIABLE, None)
    if "PYTHONPATH" in values:
        folders = values["PYTHONPATH"].split(os.pathsep)
        ours = _INJECT.resolve()
        values["PYTHONPATH"] = os.pathsep.join(each for each in folders if not each or Path(each).resolve() != ours)
        if not values["PYTHONPATH"]:
            del values["PYTHONPATH"]
    return values


# ---- in the sampler


def main(arguments: list[str]) -> int:
    """Samples into the folder RUN; ends with the process PARENT_PID if that is given."""
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write("usage: python -m gpuprof.record.launcher.telemetry RUN [PARENT_PID]\n")
        return 2
    from ...devices.find_driver import find_driver

    folder = Path(arguments[0])
    parent = int(arguments[1]) if len(arguments) == 2 else os.getppid()
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(10)
    try:
        sample(folder, parent, find_driver())
    except Exception as error:  # OSError: a folder that is gone, a full disk
        runfile.log(folder, f"telemetry ends early: {error!r}")
        return 1
    return 0


def sample(folder: Path, parent: int, driver: GpuDriver) -> None:
    """Writes lines until the parent has gone or the file is full. Raises OSError when they cannot be written."""
    file = folder / runfile.TELEMETRY
    lines: list[dict[str, Any]] = []
    cpu = CpuShare()
    begun = due = time.monotonic()
    write_at = begun  # the first at once: a run may be short
    pause: float | None = FIRST_LINES_S
    while pause is not None and not _parent_ended(parent, due):
        lines.append(
            {"unix_ns": time.time_ns(), "load1": _load(), "cpu": cpu.since_last_time(), "gpus": driver.sample()}
        )
        now = time.monotonic()
        if now >= write_at:
            runfile.append_lines(file, lines)
            lines, write_at = [], now + KEPT_BACK_S
            pause = interval(now - begun, file.stat().st_size)
        due = max(due + (pause or 0), now)  # missed lines are not made up for
    if lines:
        runfile.append_lines(file, lines)


def interval(elapsed_s: float, size_bytes: int) -> float | None:
    """Seconds to the next line, from the age of the run and the size of the file; None: no further line."""
    if size_bytes >= LARGEST_FILE_BYTES:
        return None
    if size_bytes >= LARGEST_FILE_BYTES // 2:
        return RARELY_S
    return FIRST_LINES_S if elapsed_s < FIRST_MINUTES_S else SELDOM_S


def _parent_ended(parent: int, due: float) -> bool:
    """Waits until `due` on the monotonic clock; returns whether stdin or the parent ended before."""
    while os.getppid() == parent:
        left = due - time.monotonic()
        # The pipe stays open after the parent's end if its forks hold it too, so also check the parent now and then.
        readable, _, _ = select.select([0], [], [], min(max(left, 0.0), 1.0))
        if readable and not os.read(0, 4096):
            return True
        if left <= 0:
            return False
    return True


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


class CpuShare:
    """Busy share of all cores since the previous call; None on the first call."""

    def __init__(self, file: Path = Path("/proc/stat")) -> None:
        self._file = file
        self._last = self._ticks()

    def since_last_time(self) -> float | None:
        before, self._last = self._last, self._ticks()
        if before is None or self._last is None:
            return None
        idle, total = self._last[0] - before[0], self._last[1] - before[1]
        return round(min(max(1 - idle / total, 0.0), 1.0), 3) if total > 0 else None

    def _ticks(self) -> tuple[int, int] | None:
        """Idle and all ticks since the machine started."""
        try:
            words = self._file.read_text().split("\n", 1)[0].split()
            values = [int(word) for word in words[1:9]]  # guests' time, which follows, is in the first two already
            return values[3] + values[4], sum(values)
        except (OSError, ValueError, IndexError):
            return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
