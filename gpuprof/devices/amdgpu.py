"""AMD's GPUs, read from the files of their kernel driver (documented in the kernel's gpu/amdgpu)."""

from __future__ import annotations

from pathlib import Path

from .gpu_driver import GpuDriver


class Amdgpu(GpuDriver):
    """What amdgpu reports; so far only the memory in use. folders: one per GPU, as `find_amdgpu` finds them."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders

    def used_bytes(self) -> int | None:
        try:
            return sum(int((folder / "mem_info_vram_used").read_text()) for folder in self._folders)
        except (OSError, ValueError):
            return None


def find_amdgpu(root: Path = Path("/")) -> Amdgpu | None:
    """The GPUs that amdgpu drives; None if there are none."""
    found = sorted(file.parent for file in root.glob("sys/class/drm/card[0-9]*/device/mem_info_vram_used"))
    return Amdgpu(found) if found else None
