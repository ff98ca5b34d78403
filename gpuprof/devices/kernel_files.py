"""What the kernel says about GPUs and their drivers. `root`: root of the file system."""

from __future__ import annotations

import re
from pathlib import Path


def nvidia_is_loaded(root: Path = Path("/")) -> bool:
    """Whether the kernel driver of an NVIDIA GPU is loaded, or that of WSL, which gives access to Windows' GPU."""
    return (root / "proc/driver/nvidia/version").exists() or (root / "dev/dxg").exists()


def counters_for_root_only(root: Path = Path("/")) -> bool | None:
    """Whether NVIDIA's driver restricts GPU counters to the administrator (RmProfilingAdminOnly); None: unknown."""
    try:
        params = (root / "proc/driver/nvidia/params").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"RmProfilingAdminOnly:\s*(\d)", params)
    return None if found is None else found[1] != "0"


def numa_node(pci: str, root: Path = Path("/")) -> int | None:
    """NUMA node of a PCI device; the kernel writes `00000000:00:06.0` as 0000:00:06.0, and -1 if there are no nodes."""
    try:
        node = int((root / "sys/bus/pci/devices" / pci.lower()[-12:] / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
