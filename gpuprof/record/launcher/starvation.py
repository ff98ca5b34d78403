"""Whether a low-priority process gets almost no CPU time, because other programs use the CPUs."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Seconds, Share


WINDOW_S: Assumed[Seconds] = 1.0
LEAST_CPU_SHARE: Assumed[Share] = 0.2
"""Share of a CPU: with less, a process of normal priority finishes sooner even if it starts again. The lowest priority
gets 1.5 % of a CPU that another program uses all the time."""


class Starvation:
    """Watches one process. Call `begins` often: it judges the last second."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since: tuple[float, float] | None = None

    def begins(self) -> bool:
        """Whether it was runnable throughout the last second, and got less than LEAST_CPU_SHARE of a CPU."""
        now, found = time.monotonic(), _state_and_cpu_s(self._pid)
        if found is None or found[0] != "R":  # it waits for a disk, or has ended
            self._since = None
            return False
        if self._since is None:
            self._since = now, found[1]
        elapsed, ran = now - self._since[0], found[1] - self._since[1]
        if elapsed < WINDOW_S:
            return False
        self._since = now, found[1]
        return ran < LEAST_CPU_SHARE * elapsed


def _state_and_cpu_s(pid: int) -> tuple[str, float] | None:
    """R if it runs or waits for a CPU, and the CPU seconds it has had; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
        return words[0], (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
