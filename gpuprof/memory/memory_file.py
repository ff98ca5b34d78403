"""The memory recording of a run, without anything that reads it."""

from __future__ import annotations

from pathlib import Path

from gpuprof.errors import UnreadableTrace
from gpuprof.runfile import snapshots_in, trace_file


def memory_file(folder: Path) -> Path | None:
    """The memory recording in a run's folder: preferably a snapshot of a failed allocation, else another snapshot, else
    a trace with memory events; None without any. Raises UnreadableTrace for a folder that cannot be read."""
    try:
        found = [*snapshots_in(folder), *sorted(folder.glob(f"{trace_file(0, 'memory')}*"))]
    except OSError as error:
        raise UnreadableTrace(f"{folder}: cannot be read ({error.strerror})") from None
    return found[0] if found else None
