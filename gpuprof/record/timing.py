"""Queries to torch while steps are timed: GPUs, threads, the allocator."""

from __future__ import annotations

import threading
import time
from typing import Any


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


def is_in_backward() -> bool:
    """Whether this thread is executing a backward pass, for example a hook called by autograd."""
    import torch

    return torch._C._current_graph_task_id() != -1


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
        self._share, self._next_ns = share, 0

    def allows(self, now_ns: int) -> bool:
        """Whether it may be done again."""
        return now_ns >= self._next_ns

    def spent(self, ns: int, now_ns: int) -> None:
        """It has taken ns."""
        self._next_ns = now_ns + round(ns / self._share)


class MemoryMeter:
    """The allocator's figures, read rarely enough that reading does not show in the step time."""

    SHARE = 0.002
    """Largest share of the time that is spent on reading."""

    def __init__(self) -> None:
        self._ration = Ration(self.SHARE)

    def read(self, now_ns: int) -> dict[str, int | None]:
        """Allocated, reserved and peak bytes of the current GPU, and the calls of cudaMalloc and cudaFree that its
        allocator has made since the program started; None without a GPU, or if called again too soon."""
        import torch

        nothing: dict[str, int | None] = dict.fromkeys(
            ("allocated_bytes", "reserved_bytes", "peak_bytes", "device_allocations")
        )
        if not self._ration.allows(now_ns) or not torch.cuda.is_initialized():
            return nothing
        begun = time.perf_counter_ns()
        stats = torch.cuda.memory_stats_as_nested_dict()
        self._ration.spent(time.perf_counter_ns() - begun, now_ns)
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
