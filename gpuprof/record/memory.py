"""Memory that is taken and memory that is left, of the host and of the GPUs."""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

from .timing import devices_in_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Bytes


MOST_HOST_BYTES: Assumed[Bytes] = 16 << 30
"""The host memory that a recording may take before its window is closed early."""


class GpuMemory:
    """The allocator's figures of some GPUs, taken together: what is safe for the fullest of them is safe for all."""

    def __init__(self, devices: list[int]) -> None:
        self._peaks = dict.fromkeys(devices, 0)

    def allocated(self) -> int:
        """Bytes of the tensors that are alive."""
        return sum(_allocated_bytes(device)["current"] for device in self._peaks)

    def allocated_ever(self) -> int:
        """Bytes of all tensors since the program began, those freed since included."""
        return sum(_allocated_bytes(device)["allocated"] for device in self._peaks)

    def headroom(self) -> int:
        """Bytes that were left when most were allocated: the program needs the rest again. None are known to be left
        where the allocator is not torch's own: CUDA's does not report what was allocated meanwhile.

        To be asked for now and then: a program may set the allocator's own account of its peak to zero.
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

    # As a tree, not as torch.cuda.memory_stats flattens it: that takes longer than all the rest.
    stats: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(device)
    return stats["allocated_bytes"]["all"]


def gpu_bytes_to_spare() -> int | None:
    """Free memory of the current GPU, what the allocator holds unused included; None without a GPU."""
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
    """The most host memory that this process has held. getrusage(2) is only the fallback: it counts the memory of the
    process that started this one until exec(2), which may be far more."""
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
