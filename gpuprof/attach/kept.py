"""Which of its recordings a watch keeps, within a limit of bytes on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuprof import runfile


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run folder. size_bytes: of all its files. large_bytes: of those that can be removed."""

    folder: Path
    size_bytes: int
    large_bytes: int


def to_shrink(runs: Sequence[KeptRun], needed: Sequence[Path], most_bytes: int) -> list[Path]:
    """The runs whose recordings have to be removed so that all together fit `most_bytes`, the oldest first, and never
    those that are needed. The files that say how a run went are kept. Where that is not enough, the remaining runs are
    too large.

    runs: oldest first.
    """
    over = sum(run.size_bytes for run in runs) - most_bytes
    chosen: list[Path] = []
    for run in runs:
        if over > 0 and run.folder not in needed and run.large_bytes:
            chosen.append(run.folder)
            over -= run.large_bytes
    return chosen


def measured(folder: Path) -> KeptRun:
    """The size of a run; what cannot be read counts nothing."""
    sizes = {path: _size(path) for path in folder.rglob("*")}
    large = runfile.recordings_in(folder) if folder.is_dir() else []
    return KeptRun(folder, sum(sizes.values()), sum(sizes.get(path, 0) for path in large))


def shrink(folder: Path) -> None:
    """Removes a run's recordings. Never raises."""
    with contextlib.suppress(OSError):
        for path in runfile.recordings_in(folder):
            path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size if path.is_file() and not path.is_symlink() else 0
    except OSError:
        return 0
