"""The GPUs as reported by nvidia-smi."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from gpuprof.doctor.machine_facts import Gpu
from gpuprof.units import Assumed, Seconds

FIELDS = (
    "index", "name", "pci.bus_id", "driver_version", "power.limit", "power.default_limit", "clocks.max.sm",
    "clocks.applications.graphics", "compute_mode", "mig.mode.current", "memory.used", "utilization.gpu",
    "clocks_throttle_reasons.active",
)  # fmt: skip
TIMEOUT_S: Assumed[Seconds] = 20.0
SLOWDOWNS = {
    0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
    0x80: "power brake",
}  # fmt: skip
"""Bits of NVML's nvmlClocksEventReasons that indicate a problem (idle, and a power cap under load, do not)."""


def gpus(devices: Path = Path("/sys/bus/pci/devices")) -> tuple[tuple[Gpu, ...], str | None]:
    """(the GPUs with the processes on them, the newest CUDA version that the driver supports)."""
    listed = _ask(f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
    found = read_gpus(listed, devices)
    if not found:
        return (), None
    apps = _ask("--query-compute-apps=gpu_bus_id,pid,process_name", "--format=csv,noheader")
    return with_processes(found, apps), cuda_version(_ask())


def read_gpus(csv: str, devices: Path) -> tuple[Gpu, ...]:
    """One GPU per line of FIELDS; incomplete lines are skipped. devices: the kernel's PCI folder."""
    found = []
    for line in csv.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(FIELDS) or not words[0].isdigit():
            continue
        reasons = int(words[12], 16) if re.fullmatch(r"0x[0-9a-fA-F]+", words[12]) else 0
        found.append(
            Gpu(
                int(words[0]),
                words[1],
                words[2],
                words[3],
                _number(words[4]),
                _number(words[5]),
                _number(words[6]),
                _number(words[7]),
                tuple(name for bit, name in SLOWDOWNS.items() if reasons & bit),
                words[8],
                words[9],
                _number(words[10]),
                _number(words[11]),
                (),
                _numa_node(devices, words[2]),
            )
        )
    return tuple(found)


def with_processes(found: tuple[Gpu, ...], csv: str) -> tuple[Gpu, ...]:
    """The GPUs, each with the processes on it: lines of bus id, pid and name."""
    from dataclasses import replace

    running: dict[str, list[str]] = {}
    for line in csv.splitlines():
        words = [word.strip() for word in line.split(",", 2)]
        if len(words) == 3 and words[1].isdigit():
            running.setdefault(words[0], []).append(f"{words[2].rpartition('/')[2]} ({words[1]})")
    return tuple(replace(gpu, processes=tuple(running.get(gpu.pci, ()))) for gpu in found)


def cuda_version(text: str) -> str | None:
    """The CUDA version in the head of nvidia-smi's table; newer drivers write `CUDA UMD Version`."""
    found = re.search(r"CUDA (?:UMD )?Version:\s*(\d+\.\d+)", text)
    return found[1] if found else None


def _ask(*arguments: str) -> str:
    """Output of nvidia-smi; empty if it is missing or fails."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    try:
        done = subprocess.run(
            [command, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _numa_node(devices: Path, pci: str) -> int | None:
    """NUMA node of a PCI device; the kernel writes `00000000:00:06.0` as 0000:00:06.0, and -1 if there are no nodes."""
    try:
        node = int((devices / pci.lower()[-12:] / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
