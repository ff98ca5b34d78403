"""Queries to torch while steps are timed: GPUs, threads, the allocator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Code, Published, WholeNs


def devices_in_use() -> list[int]:
    """GPUs on which this process has memory; empty without CUDA."""
    import torch

    if not torch.cuda.is_initialized():
        return []
    return [d for d in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(d)]


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured on the current stream."""
    import torch

    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def has_gpu_support() -> bool:
    """Whether this torch was built for GPUs, so that CUDA graphs are possible. Like torch.backends.cuda.is_built,
    but it also works while torch is being imported: torch imports its loaders before its backends."""
    import torch

    return bool(torch._C._has_cuda)


def capturing_check() -> Callable[[], bool]:
    """A function that returns whether a CUDA graph is being captured on the current stream, once CUDA is initialised:
    torch's C++ function, because it is called several times a step."""
    import torch

    return getattr(torch._C, "_cuda_isCurrentStreamCapturing", is_capturing)


NO_TASK: Published[Code] = -1
"""What the function from `graph_task` returns outside of backward passes."""


def graph_task() -> Callable[[], int]:
    """torch's C++ function that returns the id of the backward pass that this thread is executing; one that returns
    NO_TASK if this torch has none."""
    import torch

    return getattr(torch._C, "_current_graph_task_id", lambda: NO_TASK)


def is_in_backward() -> bool:
    """Whether this thread is executing a backward pass, for example a hook called by autograd."""
    return graph_task()() != NO_TASK


def training_thread() -> int:
    """The thread that trains: this one, unless autograd has created it for a backward pass; then the main thread."""
    here = threading.current_thread()
    if isinstance(here, threading._DummyThread) and is_in_backward():
        return threading.main_thread().ident or here.ident or 0
    return threading.get_ident()


def synchronise(devices: list[int]) -> None:
    """Waits until these GPUs have done all their work."""
    import torch

    for device in devices:
        torch.cuda.synchronize(device)


class Ration:
    """Keeps something to at most a share of the time: after it has taken long, it has to pause for long.

    share: of the time, at most, that is spent on it.
    """

    def __init__(self, share: float) -> None:
        self._share, self.next_ns = share, 0

    def allows(self, now_ns: int) -> bool:
        """Whether it may be done again: from `next_ns` on."""
        return now_ns >= self.next_ns

    def spent(self, ns: int, now_ns: int) -> None:
        """It has taken `ns`, until `now_ns`."""
        self.next_ns = now_ns + round(ns / self._share)


LOOK_NS: Assumed[WholeNs] = 2_000
"""Time that it takes to see that there is no GPU."""
NOT_READ: dict[str, int | None] = dict.fromkeys(
    ("allocated_bytes", "reserved_bytes", "peak_bytes", "device_allocations")
)


class MemoryMeter:
    """The allocator's figures, read rarely enough that reading does not show in the step time."""

    SHARE = 0.002
    """Largest share of the time that is spent on reading."""

    def __init__(self) -> None:
        self.ration = Ration(self.SHARE)

    def read(self, now_ns: int) -> dict[str, int | None]:
        """Allocated, reserved and peak bytes of the current GPU, and the calls of cudaMalloc and cudaFree that its
        allocator has made since the program started; None without a GPU, or if called again too soon."""
        if not self.ration.allows(now_ns):
            return NOT_READ
        import torch

        if not torch.cuda.is_initialized():
            self.ration.spent(LOOK_NS, now_ns)
            return NOT_READ
        begun = time.perf_counter_ns()
        stats = torch.cuda.memory_stats_as_nested_dict()
        self.ration.spent(time.perf_counter_ns() - begun, now_ns)
        calls = [stats[name] for name in ("num_device_alloc", "num_device_free") if isinstance(stats.get(name), int)]
        return {
            "allocated_bytes": _of_all(stats, "allocated_bytes", "current"),
            "reserved_bytes": _of_all(stats, "reserved_bytes", "current"),
            "peak_bytes": _of_all(stats, "allocated_bytes", "peak"),
            "device_allocations": sum(calls) if calls else None,
        }


def _of_all(stats: dict[str, Any], name: str, key: str) -> int:
    """A figure summed over all memory pools; 0 if the allocator does not keep it."""
    return stats.get(name, {}).get("all", {}).get(key, 0)
