"""Facts about a machine, and the outcome of a check. A fact that could not be read is None (or empty)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpuprof.devices.gpu_driver import InstalledGpu

Status = Literal["ok", "note", "warning", "blocker", "unknown"]
"""blocker: recording cannot work. warning: recordings are spoiled or misleading. note: good to know. unknown: the fact
could not be read here."""


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one check."""

    id: str
    status: Status
    message: str
    remedy: str | None = None
    """What to do; None if nothing."""


@dataclass(frozen=True, slots=True)
class Torch:
    """The target's torch, and what its profiler recorded of one matrix multiplication."""

    version: str | None
    """None: torch cannot be imported; `error` says why."""
    cuda: str | None = None
    """CUDA version that torch was built for; None for a CPU-only or ROCm build."""
    hip: str | None = None
    devices: tuple[str, ...] = ()
    """Names of the GPUs that torch sees."""
    gpu_events: int | None = None
    """GPU events that torch.profiler recorded of the probe; None if it was not tried."""
    error: str = ""
    """What importing torch, using the GPU or profiling it printed or raised, on one line."""


@dataclass(frozen=True, slots=True)
class Mount:
    """The file system of a folder."""

    folder: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Everything the checks use."""

    platform: str
    """As sys.platform: linux, darwin, win32."""
    kernel: str
    """Text of /proc/version."""
    python: str
    """The interpreter that `gpuprof trace script.py` would use."""
    torch: Torch
    gpus: tuple[InstalledGpu, ...] = ()
    gpu_files: bool = False
    """Whether the kernel driver of an NVIDIA GPU is loaded."""
    driver_cuda: str | None = None
    """Newest CUDA version that the driver supports."""
    admin_only: bool | None = None
    """Whether the driver restricts GPU counters to the administrator (RmProfilingAdminOnly)."""
    is_root: bool = False
    container: str | None = None
    """Kind of container we run in."""
    variables: dict[str, str] = field(default_factory=dict)
    nsys: str | None = None
    """Version and path of Nsight Systems; None with the reason in `nsys_error`."""
    nsys_error: str = ""
    out: str = ""
    """Folder that runs are written to."""
    out_error: str = ""
    """Why nothing can be written there; empty if it can."""
    out_free_bytes: int | None = None
    shared_memory_bytes: int | None = None
    """Size of /dev/shm, through which DataLoader workers pass batches."""
    machine_cpus: int = 1
    affinity: frozenset[int] = frozenset()
    """Logical CPUs that this process may run on."""
    node_cpus: dict[int, frozenset[int]] = field(default_factory=dict)
    """NUMA node → its logical CPUs."""
    cpu_quota: float | None = None
    """CPUs' worth of time that the control group allows; None: no limit."""
    load: float | None = None
    """Mean number of runnable processes over the last minute."""
    governors: tuple[str, ...] = ()
    """Distinct frequency governors, each with its driver: `powersave (acpi-cpufreq)`."""
    data: tuple[Mount, ...] = ()
    """File systems of the folders that data is read from."""
