"""What a GPU driver can report. Each way to read it is a GpuDriver: NVML, nvidia-smi, amdgpu's files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CLOCK_REASONS = (
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal",
    "hw_thermal", "hw_power_brake", "display_clock", "board_limit", "reliability",
)  # fmt: skip
"""Reasons why clocks are not higher, by bits of NVML's nvmlClocksEventReasons, lowest first."""


@dataclass(frozen=True, slots=True)
class InstalledGpu:
    """One GPU of the machine, visible to CUDA or not. None: the driver does not say."""

    index: int
    """As nvidia-smi counts, in the order of the PCI bus."""
    name: str
    pci: str
    """Bus address: `00000000:00:06.0`."""
    driver: str
    """Version of the driver."""
    power_limit_w: float | None = None
    default_limit_w: float | None = None
    max_sm_mhz: float | None = None
    sm_limit_mhz: float | None = None
    """Application clock that caps the SMs."""
    clock_reasons: tuple[str, ...] = ()
    """The CLOCK_REASONS that apply at the moment."""
    is_partitioned: bool = False
    """Whether it is divided into MIG instances."""
    utilization: float | None = None
    """Percent of the last sampling period."""
    processes: tuple[str, ...] = ()
    """Name and pid of the processes that compute on it."""
    numa_node: int | None = None


class GpuDriver:
    """Without a driver: no GPUs. Subclasses override what they can answer."""

    def installed(self) -> tuple[InstalledGpu, ...]:
        """All GPUs of the machine, with their settings and what they do now."""
        return ()

    def newest_cuda(self) -> str | None:
        """The newest CUDA version that the driver supports: `13.0`; None: unknown, or no CUDA."""
        return None

    def used_bytes(self) -> int | None:
        """Memory in use on all GPUs of the machine together; None if it is not known of each."""
        return None

    def sample(self) -> list[dict[str, Any]]:
        """What each GPU that CUDA may use does now, as telemetry.jsonl has it: power in watts, utilisations as shares
        of the time. Quick enough for several calls a second; a driver that is not has no samples."""
        return []


def reasons_of(bits: int | None) -> list[str] | None:
    """Names of the bits of nvmlClocksEventReasons that are set; those that have no name together as one number."""
    if bits is None:
        return None
    names = [name for place, name in enumerate(CLOCK_REASONS) if bits >> place & 1]
    unknown = bits >> len(CLOCK_REASONS) << len(CLOCK_REASONS)
    return [*names, hex(unknown)] if unknown else names
