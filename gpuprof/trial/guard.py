"""Run next to `gpuprof try` as a script: if gpuprof is killed, ends what it has started and removes the scratch folder.

Standard library only. Reads standard input until it ends. `python guard.py SCRATCH`; a line `done` means
that nothing is left to do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Seconds

VARIABLE = "GPUPROF_TRIAL="
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OWN_END_S: Assumed[Seconds] = 5.0
"""Seconds that the processes get to end by themselves."""
POLL_S: Assumed[Seconds] = 0.05
"""Time between two looks for processes that are left."""
STARTING_S: Assumed[Seconds] = 0.5
"""A starting process shows its environment after this many seconds at the latest."""


def processes_of(folder: str) -> list[int]:
    """Processes that were started with a trial's folder, or one below it, in their environment."""
    mark = (VARIABLE + folder).encode()
    found = []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit() or int(place.name) == os.getpid():
            continue
        try:
            entries = (place / "environ").read_bytes().split(b"\0")
        except OSError:  # ended, or another user's
            continue
        if any(entry == mark or entry.startswith(mark + b"/") for entry in entries):
            found.append(int(place.name))
    return found


def kill_all(folder: str, patience_s: float = 10.0, watch_s: float = 0.0) -> bool:
    """Kills a trial's processes until none is left, including those that start within `watch_s`; False if some are
    left."""
    begun = time.monotonic()
    end = begun + patience_s
    while True:
        left = [pid for pid in processes_of(folder) if not _is_dead(pid)]
        if not left and time.monotonic() >= begun + watch_s:
            return True
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)


def remove_tree(folder: str) -> None:
    """Removes a folder, including subfolders that a program or an overlay has made unreadable."""
    for root, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(root, name)
            with contextlib.suppress(OSError):
                if not path.is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _is_dead(pid: int) -> bool:
    """Whether the process is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"])
    except OSError:
        return True


def main(scratch: str) -> None:
    """Waits for gpuprof to end."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.read().strip() != "done":
        # Sandboxes end their processes, including daemons, once gpuprof has ended; only survivors are killed here.
        end = time.monotonic() + OWN_END_S
        while processes_of(scratch) and time.monotonic() < end:
            time.sleep(POLL_S)
        kill_all(scratch, watch_s=STARTING_S)
        remove_tree(scratch)


if __name__ == "__main__":
    main(sys.argv[1])
