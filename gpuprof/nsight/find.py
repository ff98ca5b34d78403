"""Finds Nsight Systems: on PATH, in a CUDA toolkit, on its own, in the HPC SDK, or inside Nsight Compute."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpuprof.nsight.call import NsysError, call
from gpuprof.units import Assumed, Seconds

VARIABLE = "GPUPROF_NSYS"
"""Environment variable with the path of the nsys to use."""
ANSWER_S: Assumed[Seconds] = 20.0
"""Seconds that nsys gets to print its version; it has been seen to hang at its first start."""

_PLACES = (
    "usr/local/cuda*/bin/nsys",
    "usr/local/cuda*/nsight-systems-*/bin/nsys",
    "opt/nvidia/nsight-systems*/bin/nsys",
    "opt/nvidia/nsight-systems*/*/bin/nsys",
    "opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
    "opt/nvidia/hpc_sdk/Linux_*/*/profilers/Nsight_Systems/bin/nsys",
    "opt/nvidia/hpc_sdk/Linux_*/*/profilers/Nsight_Systems/target-linux-*/nsys",
    "opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
    "usr/local/cuda*/nsight-compute-*/host/target-linux-*/nsys",
)


class Nsys(NamedTuple):
    """An nsys that runs."""

    path: str
    version: tuple[int, ...]
    """Parts of 2025.3.1.0; empty if it prints none."""

    @property
    def version_text(self) -> str:
        """The version as it is written."""
        return ".".join(map(str, self.version)) or "of unknown version"


def find() -> Nsys:
    """The newest nsys that works, or the one in GPUPROF_NSYS. Raises NsysError."""
    named = os.environ.get(VARIABLE)
    if named:
        try:
            return Nsys(named, version_of(named))
        except NsysError as error:
            raise NsysError(f"{VARIABLE}: {error}") from None
    found, failed = [], []
    for path in candidates(os.environ.get("PATH", os.defpath)):
        try:
            found.append(Nsys(path, version_of(path)))
        except NsysError as error:
            failed.append(str(error))
    if found:
        return max(found, key=lambda nsys: nsys.version)
    if failed:
        raise NsysError(f"Nsight Systems is installed and does not work: {failed[0]}")
    raise NsysError(
        f"Nsight Systems (nsys) is not installed, nor Nsight Compute, which brings one; {VARIABLE} names it elsewhere"
    )


def candidates(path: str, root: Path = Path("/")) -> Iterator[str]:
    """Every installed nsys, each once, those on PATH first; `root`: root of the file system."""
    seen = set()
    for candidate in _everywhere(path, root):
        real = os.path.realpath(candidate)
        if real not in seen and Path(real).is_file() and os.access(real, os.X_OK):
            seen.add(real)
            yield str(candidate)


def _everywhere(path: str, root: Path) -> Iterator[str | Path]:
    on_path = shutil.which("nsys", path=path)
    if on_path:
        yield on_path
    for place in _PLACES:
        yield from sorted(root.glob(place), reverse=True)
    ncu = shutil.which("ncu", path=path)
    if ncu:
        yield from sorted(Path(os.path.realpath(ncu)).parent.glob("host/target-linux-*/nsys"))


def version_of(path: str) -> tuple[int, ...]:
    """The version that an nsys reports. Raises NsysError if it does not run."""
    answer = call([path, "--version"], ANSWER_S)
    if answer.code:
        raise NsysError(f"{path} --version: {answer.words() or f'exit code {answer.code}'}")
    found = re.search(r"\b(20\d\d(?:\.\d+)+)", answer.text)
    return tuple(map(int, found[1].split("."))) if found else ()
