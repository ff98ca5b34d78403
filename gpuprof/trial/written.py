"""What a recorded program wrote, and which of these writes a trial could not keep away from the user's files.
Python's writes are redirected to the scratch folder, but only the working directory is compared before and after a
trial. So a program that writes elsewhere, or in native code, is tried only with the user's consent.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpuprof import runfile
from gpuprof.record.files.caches import caches
from gpuprof.record.files.written import FILE

SAVED = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".distcp", ".metadata")
"""Suffixes of files that torch.save, safetensors and checkpoints write in native code; trials skip these calls."""
TRACKERS = frozenset({"wandb", "mlruns", "aim", ".aim", ".neptune", "lightning_logs", "trackio"})
"""Folders of trackers, which are disabled in trials."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Paths that a recorded program changed, each once, in order."""

    inside: tuple[str, ...]
    """Changed by Python, in the working directory."""
    elsewhere: tuple[str, ...]
    """Changed by Python, outside of it."""
    native: tuple[str, ...]
    """Changed in the working directory by native code or another program, which a trial cannot prevent."""

    @property
    def escape(self) -> str | None:
        """What would escape a trial's checks, as a part of a sentence; None if nothing would."""
        if self.native:
            return f"{_first(self.native)} changed without a Python call (native code or another program did it)"
        if self.elsewhere:
            return f"it writes {_first(self.elsewhere)} outside of this folder"
        return None


def changes_of(run: Path) -> Changes:
    """Reads the changes from a run's folder. Older runs, which did not record them, count as having none."""
    manifest = runfile.read_json(run / runfile.MANIFEST) or {}
    here = os.path.realpath(str(manifest.get("cwd") or Path.cwd()))
    inside: dict[str, None] = {}
    elsewhere: dict[str, None] = {}
    native: dict[str, None] = {}
    for line in runfile.read_lines(run / FILE):
        path = line.get("path")
        if not isinstance(path, str):
            continue
        is_inside = _is_below(os.path.realpath(Path(path).parent), here)
        if not is_inside and _is_no_ones(path):
            continue
        if line.get("pid") is not None:
            (inside if is_inside else elsewhere)[path] = None
        elif not path.endswith(SAVED) and TRACKERS.isdisjoint(Path(path).parts):
            native[path] = None
    return Changes(tuple(inside), tuple(elsewhere), tuple(native))


def _is_no_ones(path: str) -> bool:
    """Whether the path is in a cache, or was a temporary file that no longer exists: such changes harm no one."""
    if any(_is_below(path, root) for root in caches()):
        return True
    return _is_below(path, tempfile.gettempdir()) and not os.path.lexists(path)


def _is_below(path: str, folder: str) -> bool:
    return f"{path}{os.sep}".startswith(f"{folder.rstrip(os.sep)}{os.sep}")


def _first(paths: tuple[str, ...]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
