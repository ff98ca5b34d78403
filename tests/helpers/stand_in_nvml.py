"""A stand-in for pynvml, as a module that a test loads itself or that processes find on their path."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from helpers.present import present

NVML = '''
"""Two GPUs, the second with two MIG instances; what NVML_REFUSES names, the driver does not answer."""
import os

class NVMLError(Exception): ...

class Use: gpu, memory = 97, 40

class Memory: used = 5 << 30

class Slice: used = 1 << 30

class Bus: busId = b"00000000:00:06.0"

class OtherBus: busId = "00000000:00:07.0"

class Process: pid = 514

UUIDS = {0: "GPU-aaaa1111-0000", 1: "GPU-aaaa2222-0000", "mig0": "MIG-cccc", "mig1": "MIG-dddd"}

def answer(function):
    def ask(*arguments):
        if function.__name__ in os.environ.get("NVML_REFUSES", "").split(","):
            raise NVMLError("Not Supported")
        return function(*arguments)
    return ask

@answer
def nvmlInit(): ...
@answer
def nvmlDeviceGetCount(): return 2
@answer
def nvmlDeviceGetHandleByIndex(index): return index
@answer
def nvmlDeviceGetHandleByUUID(uuid): return next(key for key, value in UUIDS.items() if value == uuid)
@answer
def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle): return 1
@answer
def nvmlDeviceGetUUID(handle): return UUIDS[handle].encode() if handle == 1 else UUIDS[handle]
@answer
def nvmlDeviceGetName(handle): return os.environ.get("NVML_NAMES", "NVIDIA H200,NVIDIA H200").split(",")[handle]
@answer
def nvmlDeviceGetPowerUsage(handle): return 651_234 + handle
@answer
def nvmlDeviceGetTotalEnergyConsumption(handle): return 98_765_432
@answer
def nvmlDeviceGetEnforcedPowerLimit(handle): return 700_000
@answer
def nvmlDeviceGetClockInfo(handle, which): return {1: 1980, 2: 3201}[which]
@answer
def nvmlDeviceGetTemperature(handle, sensor): return 61 + sensor
@answer
def nvmlDeviceGetUtilizationRates(handle):
    if isinstance(handle, str): raise NVMLError("Not Supported")
    return Use
@answer
def nvmlSystemGetDriverVersion(): return "580.159.04"
@answer
def nvmlSystemGetCudaDriverVersion(): return 13000
@answer
def nvmlDeviceGetPciInfo(handle): return Bus if handle == 0 else OtherBus
@answer
def nvmlDeviceGetPowerManagementLimit(handle): return 700_000
@answer
def nvmlDeviceGetPowerManagementDefaultLimit(handle): return 700_000
@answer
def nvmlDeviceGetMaxClockInfo(handle, which): return {1: 1980, 2: 3201}[which]
@answer
def nvmlDeviceGetApplicationsClock(handle, which): return {0: 1980}[which]
@answer
def nvmlDeviceGetMigMode(handle): return [handle, handle]
@answer
def nvmlDeviceGetComputeRunningProcesses(handle): return [Process] if handle == 0 else []
@answer
def nvmlSystemGetProcessName(pid): return b"/usr/bin/python3"
@answer
def nvmlDeviceGetMemoryInfo(handle): return Slice if isinstance(handle, str) else Memory
@answer
def nvmlDeviceGetCurrentClocksEventReasons(handle): return 0x1a4
@answer
def nvmlDeviceGetCurrentClocksThrottleReasons(handle): return 0xa04
'''


def nvml_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the stand-in first on the path of the processes that a test starts; returns its file."""
    file = folder / "nvml" / "pynvml.py"
    file.parent.mkdir()
    file.write_text(NVML)
    monkeypatch.setenv("PYTHONPATH", str(file.parent))
    without_choices(monkeypatch)
    return file


def without_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the variables that choose GPUs, and those that the stand-in reads."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVML_REFUSES", "NVML_NAMES"):
        monkeypatch.delenv(name, raising=False)


def load_stand_in(file: Path) -> ModuleType:
    """The stand-in as a module, loaded from a file to write it to."""
    file.write_text(NVML)
    spec = present(importlib.util.spec_from_file_location("stand_in_for_pynvml", file))
    module = importlib.util.module_from_spec(spec)
    present(spec.loader).exec_module(module)
    return module
