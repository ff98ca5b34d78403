"""Collects the facts of this machine. `root`: root of the file system, so that tests can read another machine's."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from gpuprof.devices.find_driver import find_driver
from gpuprof.devices.kernel_files import counters_for_root_only, nvidia_is_loaded
from gpuprof.doctor.machine_facts import MachineFacts, Mount
from gpuprof.doctor.probe import probe
from gpuprof.record.launcher.machine import cpu_quota

VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH", "NVIDIA_DRIVER_CAPABILITIES",
    "TORCH_DISTRIBUTED_DEBUG", "NCCL_DEBUG",
)  # fmt: skip


def collect(python: str, out: Path, data: tuple[Path, ...], root: Path = Path("/")) -> MachineFacts:
    """Collects all facts. python: the target's interpreter. out: where runs go. data: folders that data is read
    from."""
    driver = find_driver()
    nsys, nsys_error = _nsys()
    mounts = read_mounts(_text(root / "proc/self/mountinfo"))
    return MachineFacts(
        platform=sys.platform, kernel=_text(root / "proc/version"), python=python, torch=probe(python),
        gpus=driver.installed(), gpu_files=nvidia_is_loaded(root), driver_cuda=driver.newest_cuda(),
        admin_only=counters_for_root_only(root),
        is_root=hasattr(os, "geteuid") and os.geteuid() == 0, container=container(root, dict(os.environ)),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        nsys=nsys, nsys_error=nsys_error, out=str(out), out_error=why_not_writable(out), out_free_bytes=_free(out),
        shared_memory_bytes=_size(root / "dev/shm"), machine_cpus=os.cpu_count() or 1, affinity=_affinity(),
        node_cpus=node_cpus(root / "sys/devices/system/node"), cpu_quota=cpu_quota(root / "sys/fs/cgroup"),
        load=_load(), governors=governors(root / "sys/devices/system/cpu"),
        data=tuple(mount for folder in data if (mount := mount_of(folder, mounts)) is not None),
    )  # fmt: skip


def container(root: Path, variables: dict[str, str]) -> str | None:
    """The kind of container; None outside of one."""
    if "KUBERNETES_SERVICE_HOST" in variables:
        return "Kubernetes"
    if "APPTAINER_CONTAINER" in variables or "SINGULARITY_CONTAINER" in variables:
        return "Apptainer"
    if (root / ".dockerenv").exists():
        return "Docker"
    return "Podman" if (root / "run/.containerenv").exists() else None


def why_not_writable(out: Path) -> str:
    """Why no folder can be created in `out`; empty if one can. Leaves nothing behind."""
    folder = _existing(out)
    if out.exists() and not out.is_dir():
        return "it is a file"
    try:
        with tempfile.TemporaryDirectory(prefix=".gpuprof-", dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def node_cpus(folder: Path) -> dict[int, frozenset[int]]:
    """NUMA node → its logical CPUs."""
    return {
        int(node.name[4:]): cpu_list(_text(node / "cpulist"))
        for node in (sorted(folder.iterdir()) if folder.is_dir() else ())
        if re.fullmatch(r"node\d+", node.name)
    }


def cpu_list(text: str) -> frozenset[int]:
    """Parses the kernel's list of CPUs, such as `0-3,8`."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def governors(folder: Path) -> tuple[str, ...]:
    """Distinct frequency governors of the CPUs, each with its driver."""
    found = {
        f"{governor} ({driver or 'unknown driver'})"
        for cpu in (folder.glob("cpu[0-9]*/cpufreq") if folder.is_dir() else ())
        if (governor := _text(cpu / "scaling_governor").strip())
        for driver in [_text(cpu / "scaling_driver").strip()]
    }
    return tuple(sorted(found))


def read_mounts(mountinfo: str) -> tuple[tuple[str, str, str], ...]:
    """(folder, kind, source) of every line of /proc/self/mountinfo: see proc(5)."""
    found = []
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        words, more = before.split(), after.split()
        if dash and len(words) >= 5 and len(more) >= 2:
            found.append((_unescape(words[4]), more[0], _unescape(more[1])))
    return tuple(found)


def mount_of(folder: Path, mounts: tuple[tuple[str, str, str], ...]) -> Mount | None:
    """The mount of a folder: the deepest mount point above it; of equal ones the last, which covers the others."""
    real = Path(os.path.realpath(folder))
    above = [mount for mount in mounts if Path(mount[0]) == real or Path(mount[0]) in real.parents]
    if not above:
        return None
    deepest = max(len(Path(mount[0]).parts) for mount in above)
    _, kind, source = [mount for mount in above if len(Path(mount[0]).parts) == deepest][-1]
    return Mount(str(folder), kind, source)


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)


def _nsys() -> tuple[str | None, str]:
    from gpuprof.nsight.call import NsysError
    from gpuprof.nsight.find import find

    try:
        nsys = find()
    except NsysError as error:
        return None, str(error)
    return f"{nsys.version_text}: {nsys.path}", ""


def _existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    folder = folder.absolute()
    return next((each for each in (folder, *folder.parents) if each.is_dir()), Path("/"))


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(_existing(folder)).free
    except OSError:
        return None


def _size(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def _affinity() -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return frozenset()


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
