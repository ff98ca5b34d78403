"""What a manifest says about the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """CPUs' worth of time that the control group allows (cgroup v2 `cpu.max`, v1 `cpu.cfs_quota_us`); None where
    there is no limit. In a container the affinity mask shows the whole machine, but only this share may be used."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            words = " ".join((root / name).read_text() for name in files).split()
            quota, period = float(words[0]), float(words[1])
        except (OSError, ValueError, IndexError):
            continue
        return quota / period if quota > 0 and period > 0 else None
    return None


def usable_cores(root: Path = Path("/sys")) -> float:
    """Cores of the processors that this process may use, or the quota if that is less. What runs on the other processor
    of a core slows this one down, whatever its priority."""
    cores = set()
    for cpu in _allowed_cpus():
        try:
            cores.add((root / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            cores.add(str(cpu))
    quota = cpu_quota(root / "fs/cgroup")
    return len(cores) if quota is None else min(len(cores), quota)


def _allowed_cpus() -> set[int]:
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):
        return set(range(os.cpu_count() or 1))


def describe_host() -> dict[str, Any]:
    """CPUs that this process may use, bytes of memory, and the system."""
    system = os.uname()
    try:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        memory_bytes = None
    return {
        "cpus": len(_allowed_cpus()),
        "cpu_quota": cpu_quota(),
        "memory_bytes": memory_bytes,
        "platform": f"{system.sysname}-{system.release}-{system.machine}",
    }
