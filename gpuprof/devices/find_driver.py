"""The best way to ask this machine's GPU driver."""

from __future__ import annotations

import contextlib

from .amdgpu import find_amdgpu
from .gpu_driver import GpuDriver
from .nvidia_smi import find_nvidia_smi
from .nvml import Nvml, load_nvml


def find_driver() -> GpuDriver:
    """NVML if it can be used, else nvidia-smi, else amdgpu's files, else one without GPUs."""
    with contextlib.suppress(Exception):  # no such module, no driver, no permission
        return Nvml(load_nvml())
    return find_nvidia_smi() or find_amdgpu() or GpuDriver()
