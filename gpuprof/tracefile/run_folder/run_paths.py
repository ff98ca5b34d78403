"""The run that a path means: its folder, a folder of runs, its manifest, or one of its recordings."""

from __future__ import annotations

import os
from pathlib import Path

from gpuprof import runfile
from gpuprof.errors import UnreadableTrace
from gpuprof.nsight.convert import REPORTS
from gpuprof.tracefile.nsys.address import split_process
from gpuprof.tracefile.nsys.report import EXPORTS
from gpuprof.tracefile.run_folder.run import TRACE_FILE, is_document, ranks_in


def latest_run(folder: Path | None = None) -> Path:
    """The newest run in a folder of runs, `gpuprof-runs` by default; one that took no step only if there is no other.

    Raises UnreadableTrace if there is none.
    """
    runs = Path(runfile.RUNS) if folder is None else folder
    latest = runs / runfile.LATEST
    if holds_run(latest):
        # Under its own name: files made from it must not be named `latest`, which will later mean another run.
        return Path(os.path.normpath(runs / latest.readlink())) if latest.is_symlink() else latest
    found = runs_in(runs)
    if found:
        took_steps = [path for path in found if any(path.glob("rank*.json"))]
        return (took_steps or found)[-1]
    raise UnreadableTrace(
        f"{runs} holds no run: make one with gpuprof trace train.py, or name a recording: gpuprof diagnose PATH"
    )


def runs_in(folder: Path) -> list[Path]:
    """The runs in a folder, oldest first: their names begin with the date."""
    try:
        return sorted(path for path in folder.iterdir() if path.name != runfile.LATEST and holds_run(path))
    except (OSError, ValueError):
        return []


def holds_run(folder: Path) -> bool:
    """Whether a folder is a run's, with or without a manifest."""
    try:
        if not folder.is_dir():
            return False
        return any((folder / name).is_file() for name in (runfile.STEPS, runfile.TELEMETRY)) or any(
            is_document(folder / name) for name in (runfile.MANIFEST, runfile.rank_file(0))
        )
    except (OSError, ValueError):
        return False


def find_run(path: Path) -> tuple[Path, int | None] | None:
    """The run folder that a path means, and the rank it names; None if it means something else.
    A path may be the run's folder, a folder of runs (means the newest), the manifest of a run or one of its recordings.
    """
    if holds_run(path):
        return path, None
    if holds_run(path / runfile.LATEST) or (path.name == runfile.RUNS and runs_in(path)):
        return latest_run(path), None
    export, pid = split_process(path)
    if export.name.endswith((*EXPORTS, *REPORTS)) and export.is_file() and holds_run(export.parent):
        return export.parent, _rank_of(export.parent, pid)
    named = TRACE_FILE.fullmatch(path.name)
    if (not named or named[3]) and path.name != runfile.MANIFEST:
        return None
    if not path.is_file() or not holds_run(path.parent):
        return None
    return path.parent, int(named[1]) if named else None


def _rank_of(folder: Path, pid: int | None) -> int | None:
    """The rank of a process, from the run's facts."""
    return None if pid is None else next((one.rank for one in ranks_in(folder) if one.pid == pid), None)
