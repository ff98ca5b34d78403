"""NVIDIA's GPUs as reported by NVML, through pynvml."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .gpu_driver import GpuDriver, InstalledGpu, reasons_of
from .kernel_files import numa_node

_GRAPHICS_CLOCK, _SM_CLOCK, _MEMORY_CLOCK = 0, 1, 2
"""NVML's nvmlClockType_t."""


def load_nvml() -> Any:
    """pynvml, initialised. Raises an exception of some kind without the module, a driver, or permission."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


@dataclass(frozen=True)
class GpuHandle:
    """A GPU, or a MIG instance of one: only its memory and its use are its own, the rest is the whole GPU's."""

    index: int | None
    """As nvidia-smi counts, in the order of the PCI bus."""
    uuid: str
    handle: Any
    whole: Any


class Nvml(GpuDriver):
    """What NVML reports. nvml: the module, initialised (`load_nvml`)."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._visible: list[GpuHandle] | None = None

    def installed(self) -> tuple[InstalledGpu, ...]:
        return tuple(map(self._installed, self._all()))

    def newest_cuda(self) -> str | None:
        version = self._ask("nvmlSystemGetCudaDriverVersion")  # 13 000 for 13.0, 12 040 for 12.4
        return f"{version // 1000}.{version % 1000 // 10}" if version else None

    def used_bytes(self) -> int | None:
        used = [getattr(self._ask("nvmlDeviceGetMemoryInfo", gpu.handle), "used", None) for gpu in self._all()]
        known = [each for each in used if each is not None]
        return sum(known) if used and len(known) == len(used) else None

    def sample(self) -> list[dict[str, Any]]:
        if self._visible is None:
            self._visible = list(self._choose(os.environ.get("CUDA_VISIBLE_DEVICES")))
        return [self._sample(gpu) for gpu in self._visible]

    def _installed(self, gpu: GpuHandle) -> InstalledGpu:
        handle = gpu.handle
        pci = _text(getattr(self._ask("nvmlDeviceGetPciInfo", handle), "busId", None)) or ""
        use = self._ask("nvmlDeviceGetUtilizationRates", handle)
        running = self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or []
        return InstalledGpu(
            index=gpu.index or 0,
            name=_text(self._ask("nvmlDeviceGetName", handle)) or "",
            pci=pci,
            driver=_text(self._ask("nvmlSystemGetDriverVersion")) or "",
            power_limit_w=_scaled(self._ask("nvmlDeviceGetPowerManagementLimit", handle), 1000),
            default_limit_w=_scaled(self._ask("nvmlDeviceGetPowerManagementDefaultLimit", handle), 1000),
            max_sm_mhz=self._ask("nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK),
            sm_limit_mhz=self._ask("nvmlDeviceGetApplicationsClock", handle, _GRAPHICS_CLOCK),
            clock_reasons=tuple(self._reasons(handle) or ()),
            is_partitioned=bool((self._ask("nvmlDeviceGetMigMode", handle) or [0])[0]),
            utilization=getattr(use, "gpu", None),
            processes=tuple(self._process_name(each.pid) for each in running),
            numa_node=numa_node(pci),
        )

    def _process_name(self, pid: int) -> str:
        """`python3 (514)`; a process of another container has no name here."""
        path = _text(self._ask("nvmlSystemGetProcessName", pid)) or "[Not Found]"
        return f"{path.rpartition('/')[2]} ({pid})"

    def _sample(self, gpu: GpuHandle) -> dict[str, Any]:
        use = self._ask("nvmlDeviceGetUtilizationRates", gpu.handle)
        memory = self._ask("nvmlDeviceGetMemoryInfo", gpu.handle)
        return {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "power_w": _scaled(self._ask("nvmlDeviceGetPowerUsage", gpu.whole), 1000),
            "energy_j": _scaled(self._ask("nvmlDeviceGetTotalEnergyConsumption", gpu.whole), 1000),
            "limit_w": _scaled(self._ask("nvmlDeviceGetEnforcedPowerLimit", gpu.whole), 1000),
            "sm_mhz": self._ask("nvmlDeviceGetClockInfo", gpu.whole, _SM_CLOCK),
            "memory_mhz": self._ask("nvmlDeviceGetClockInfo", gpu.whole, _MEMORY_CLOCK),
            "temperature_c": self._ask("nvmlDeviceGetTemperature", gpu.whole, 0),
            "utilization": _scaled(getattr(use, "gpu", None), 100),
            "memory_utilization": _scaled(getattr(use, "memory", None), 100),
            "used_bytes": getattr(memory, "used", None),
            "throttle": self._reasons(gpu.whole),
        }

    def _reasons(self, handle: Any) -> list[str] | None:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:  # try its older name
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return reasons_of(bits)

    def _ask(self, function: str, *arguments: Any) -> Any:
        """The result of an NVML call; None if NVML refuses it or this version of its module lacks it."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except Exception:
            return None

    def _choose(self, wanted: str | None) -> Iterator[GpuHandle]:
        """The GPUs in CUDA_VISIBLE_DEVICES; as in CUDA, up to the first invalid entry."""
        whole = list(self._all())
        if wanted is None or (_by_index(wanted) and not self._same_order(whole)):
            yield from whole
            return
        seen: set[str] = set()
        for entry in wanted.split(","):
            gpu = self._named(entry.strip(), whole)
            if gpu is None:
                return
            if gpu.uuid not in seen:
                seen.add(gpu.uuid)
                yield gpu

    def _all(self) -> Iterator[GpuHandle]:
        for index in range(self._ask("nvmlDeviceGetCount") or 0):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                yield GpuHandle(index, _text(self._ask("nvmlDeviceGetUUID", handle)) or f"#{index}", handle, handle)

    def _same_order(self, whole: list[GpuHandle]) -> bool:
        """Whether CUDA numbers GPUs as NVML does. By default CUDA orders them by speed, which is not known where GPUs
        differ; then all are sampled, and their UUIDs identify the training's."""
        if os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
            return True
        return len({str(self._ask("nvmlDeviceGetName", gpu.handle)) for gpu in whole}) <= 1

    def _named(self, entry: str, whole: list[GpuHandle]) -> GpuHandle | None:
        if entry.isdecimal():
            return next((gpu for gpu in whole if gpu.index == int(entry)), None)
        if entry.startswith("MIG-"):
            return self._instance(entry, whole)
        found = [gpu for gpu in whole if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
        return found[0] if len(found) == 1 else None  # a UUID may be abbreviated as long as it is unique

    def _instance(self, uuid: str, whole: list[GpuHandle]) -> GpuHandle | None:
        handle = self._ask("nvmlDeviceGetHandleByUUID", uuid)
        if handle is None:
            return None
        parent = self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        of = _text(self._ask("nvmlDeviceGetUUID", parent)) if parent is not None else None
        index = next((gpu.index for gpu in whole if gpu.uuid == of), None)
        return GpuHandle(index, uuid, handle, handle if parent is None else parent)


def _by_index(wanted: str) -> bool:
    return any(entry.strip().isdecimal() for entry in wanted.split(","))


def _scaled(value: Any, unit: int) -> float | None:
    return None if value is None else round(value / unit, 2)


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
