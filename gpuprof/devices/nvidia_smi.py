"""NVIDIA's GPUs as reported by nvidia-smi, used if pynvml is not installed. Each answer starts a process."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace

from .gpu_driver import GpuDriver, InstalledGpu, reasons_of
from .kernel_files import numa_node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Seconds

FIELDS = (
    "index", "name", "pci.bus_id", "driver_version", "power.limit", "power.default_limit", "clocks.max.sm",
    "clocks.applications.graphics", "mig.mode.current", "utilization.gpu", "clocks_throttle_reasons.active",
)  # fmt: skip
TIMEOUT_S: Assumed[Seconds] = 20.0


class NvidiaSmi(GpuDriver):
    """What nvidia-smi prints. command: its path."""

    def __init__(self, command: str) -> None:
        self._command = command

    def installed(self) -> tuple[InstalledGpu, ...]:
        found = read_gpus(self._ask(f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"))
        if not found:
            return ()
        apps = self._ask("--query-compute-apps=gpu_bus_id,pid,process_name", "--format=csv,noheader")
        return with_processes(found, apps)

    def newest_cuda(self) -> str | None:
        return cuda_version(self._ask())

    def used_bytes(self) -> int | None:
        return sum_of_mib(self._ask("--query-gpu=memory.used", "--format=csv,noheader,nounits"))

    def _ask(self, *arguments: str) -> str:
        """Output of nvidia-smi; empty if it fails."""
        try:
            done = subprocess.run(
                [self._command, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout if done.returncode == 0 else ""


def find_nvidia_smi() -> NvidiaSmi | None:
    """nvidia-smi, if it is on PATH."""
    command = shutil.which("nvidia-smi")
    return None if command is None else NvidiaSmi(command)


def read_gpus(csv: str) -> tuple[InstalledGpu, ...]:
    """One GPU per line of FIELDS, without its processes; incomplete lines are skipped."""
    found = []
    for line in csv.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(FIELDS) or not words[0].isdigit():
            continue
        index, name, pci, driver, limit, default, most, cap, mig, use, reasons = words
        bits = int(reasons, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", reasons) else 0
        found.append(
            InstalledGpu(
                int(index), name, pci, driver, _number(limit), _number(default), _number(most), _number(cap),
                tuple(reasons_of(bits) or ()), mig.lower() == "enabled", _number(use), (), numa_node(pci),
            )
        )  # fmt: skip
    return tuple(found)


def with_processes(found: tuple[InstalledGpu, ...], csv: str) -> tuple[InstalledGpu, ...]:
    """The GPUs, each with the processes on it: lines of bus id, pid and name."""
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


def sum_of_mib(lines: str) -> int | None:
    """Bytes in lines of whole MiB, one per GPU; None without lines, or if one is not a number."""
    words = lines.split()
    return sum(map(int, words)) << 20 if words and all(word.isdecimal() for word in words) else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
