"""What keeps the CPUs busy while something is timed: this training, or other programs.

On fully used CPUs a step takes longer by the time that the scheduler gives to other programs, and many times as long if
threads wait for each other. Read from /proc: the machine's CPU time minus that of this process and its children.
"""

from __future__ import annotations

import os
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Place, Published


_BUSY_PLACES: Published[tuple[Place, ...]] = (0, 1, 2, 5, 6, 7)
_IDLE_PLACES: Published[tuple[Place, ...]] = (3, 4)
"""Places in the first line of /proc/stat: user, nice, system, irq, softirq, steal; idle and waiting for a disk."""


class CpuTimes(NamedTuple):
    """CPU seconds since the machine started: of all programs, unused, and of this process with its children."""

    busy: float
    idle: float
    own: float


class Load(NamedTuple):
    """Average number of CPUs used by other programs, idle, and used by this process, over a stretch."""

    others: float
    idle: float
    own: float


def cpu_times() -> CpuTimes | None:
    """CPU times so far; None where /proc lacks them."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        tick = os.sysconf("SC_CLK_TCK")
        busy, idle = (sum(ticks[place] for place in places) / tick for places in (_BUSY_PLACES, _IDLE_PLACES))
        return CpuTimes(busy, idle, sum(os.times()[:4]) + sum(_ticks(pid) for pid in _below(os.getpid())) / tick)
    except (OSError, ValueError, IndexError):
        return None


def load_between(begin: CpuTimes | None, end: CpuTimes | None, seconds: float) -> Load | None:
    """The load of a stretch from what was read before and after it."""
    if begin is None or end is None or seconds <= 0:
        return None
    busy, idle, own = (after - before for before, after in zip(begin, end, strict=True))
    return Load(max(busy - own, 0.0) / seconds, max(idle, 0.0) / seconds, max(own, 0.0) / seconds)


def _below(pid: int) -> list[int]:
    """All living descendants of a process."""
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
            for child in map(int, file.read().split()):
                found += [child, *_below(child)]
    return found


def _ticks(pid: int) -> int:
    """CPU ticks of a process and its ended children; 0 if the process itself has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, words[11:15]))
