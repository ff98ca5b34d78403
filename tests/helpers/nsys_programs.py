"""Stand-ins for the programs of Nsight Systems."""

from __future__ import annotations

import sys
from pathlib import Path

from helpers import stand_in_nsys

SECRET = "hf_NobodyMayEverReadThis"


def make_nsys(folder: Path, version: str = "2025.3.1.90", body: str = "") -> Path:
    """An executable that tells a version, or does what `body` says."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nsys"
    path.write_text(f"#!/bin/sh\n{body or f'echo NVIDIA Nsight Systems version {version}'}\n")
    path.chmod(0o755)
    return path


def make_stand_in(folder: Path) -> Path:
    """The stand-in, as an executable."""
    return make_nsys(folder, body=f'exec "{sys.executable}" "{stand_in_nsys.__file__}" "$@"')


def make_importer(nsys: Path, body: str) -> None:
    """The importer of an installation, in the folder where Nsight Compute has it."""
    importer = nsys.parent.parent / "linux-desktop-glibc_2_11_3-x64" / "QdstrmImporter"
    importer.parent.mkdir()
    importer.write_text(f"#!/bin/sh\n{body}\n")
    importer.chmod(0o755)
