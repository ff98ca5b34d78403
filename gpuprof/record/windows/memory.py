"""Used and free memory, of the host and of the GPUs."""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

from ..base.timing import devices_in_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Bytes


MOST_HOST_BYTES: Assumed[Bytes] = 16 << 30
"""The host memory that a recording may take before its window is closed early."""


class GpuMemory:
    """The allocator's figures over several GPUs: what is safe for the fullest is safe for all."""

    def __init__(self, devices: list[int]) -> None:
        self._peaks = dict.fromkeys(devices, 0)

    def allocated(self) -> int:
        """Bytes of the tensors that are alive."""
        return sum(_allocated_bytes(device)["current"] for device in self._peaks)

    def allocated_ever(self) -> int:
        """Bytes of all tensors allocated since the program began, including those that have been freed."""
        return sum(_allocated_bytes(device)["allocated"] for device in self._peaks)

    def headroom(self) -> int:
        """Bytes left at the allocator's peak: the program will need the rest again. 0 where the allocator is not
        torch's own, because CUDA's does not report its peak. Call it now and then: a program may reset the
        allocator's peak.
        """
        import torch

        backend = getattr(torch.cuda, "get_allocator_backend", None)
        if backend is not None and backend() != "native":
            return 0
        return min(self._headroom_of(device) for device in self._peaks)

    def _headroom_of(self, device: int) -> int:
        import torch

        self._peaks[device] = peak = max(self._peaks[device], _allocated_bytes(device)["peak"])
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # torch before 2.8 does not report it
        if fraction is not None:
            free = min(free, max(0, int(fraction(device) * total) - reserved))
        return max(0, free + reserved - peak)


def gpu_memory() -> GpuMemory | None:
    """The memory of the GPUs that this process uses; None without one."""
    devices = devices_in_use()
    return GpuMemory(devices) if devices else None


def _allocated_bytes(device: int) -> dict[str, int]:
    import torch

    # As a tree: torch.cuda.memory_stats flattens it, which takes longer than everything else.
    stats: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(device)
    return stats["allocated_bytes"]["all"]


def gpu_bytes_to_spare() -> int | None:
    """Free memory of the current GPU, including what the allocator holds unused; None without a GPU."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def resident_bytes() -> int:
    """Host memory that this process holds; 0 where it is not known."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def most_resident_bytes() -> int:
    """Peak host memory of this process, bytes. getrusage(2) is only the fallback: until exec(2) it counts the memory of
    the parent process, which may be far more."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def available_bytes() -> int:
    """Host memory that may still be taken, less a reserve."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024 // 2
    except (OSError, ValueError, IndexError):
        pass
    return MOST_HOST_BYTES
