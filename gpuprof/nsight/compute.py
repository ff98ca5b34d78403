"""Nsight Compute: where it is, and the command line that counts some kernels of one step.

The target brackets the step with cudaProfilerStart and cudaProfilerStop, as it does for Nsight Systems; everything
outside runs uncounted.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuprof.errors import GpuprofError

VARIABLE = "GPUPROF_NCU"
"""Environment variable with the path of the ncu to use."""
_PLACES = (
    "usr/local/cuda*/bin/ncu",
    "opt/nvidia/nsight-compute/*/ncu",
    "usr/local/cuda*/nsight-compute-*/ncu",
    "opt/nvidia/hpc_sdk/Linux_*/*/profilers/Nsight_Compute/ncu",
)
_FORBIDDEN = re.compile(r"ERR_NVGPUCTRPERM|permission", re.IGNORECASE)


def find_ncu() -> str:
    """The ncu in GPUPROF_NCU, that on PATH, or the newest installed. Raises GpuprofError."""
    named = os.environ.get(VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise GpuprofError(f"{VARIABLE}: {named} cannot be run")
        return named
    found = next(candidates(os.environ.get("PATH", os.defpath)), None)
    if found is None:
        raise GpuprofError(f"Nsight Compute (ncu) is not installed; {VARIABLE} names it elsewhere")
    return found


def candidates(path: str, root: Path = Path("/")) -> Iterator[str]:
    """Every installed ncu, the one on PATH first, then the newest by folder name; `root`: root of the file system."""
    on_path = shutil.which("ncu", path=path)
    if on_path:
        yield on_path
    for place in _PLACES:
        for one in sorted(root.glob(place), key=_version, reverse=True):
            if one.is_file() and os.access(one, os.X_OK):
                yield str(one)


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]


def count_command(ncu: str, metrics: Sequence[str], functions: Sequence[str], launches: int, table: Path) -> list[str]:
    """The words before the program's own: counts these metrics of the first `launches` kernels of these functions
    within the bracketed step, into `table`.

    Functions are named without return type, namespaces, template arguments and parameters. The clock is left as the
    training has it.
    """
    names = "|".join(re.escape(name) for name in sorted(set(functions)))
    return [
        ncu, "--csv", "--page", "raw",
        "--log-file", str(table).replace("%", "%%"),  # % begins a macro
        "--metrics", ",".join(metrics),
        "--clock-control", "none",
        "--profile-from-start", "off",
        "--target-processes", "all",
        "--kernel-name", rf"regex:(^|[: ])({names})($|[<( ])",
        "--launch-count", str(launches),
    ]  # fmt: skip


def why_none(printed: str) -> str:
    """Why Nsight Compute counted nothing, from its output."""
    if _FORBIDDEN.search(printed):
        return "the driver lets only administrators read counters (NVreg_RestrictProfilingToAdminUsers=0 changes that)"
    lines = [
        line.partition("== ")[2].strip() for line in printed.splitlines() if re.match(r"==(ERROR|WARNING)==", line)
    ]
    return lines[-1][:300] if lines else "it printed no table"
