"""How many workers a DataLoader has, and what they hand over."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.tracefile.run_folder.run import RunFolder

WITH_WORKERS = re.compile(r"_MultiProcessing\w*Iter")
"""The iterator of a loader with workers."""


def made_of(run: RunFolder | None) -> dict[str, Any]:
    """What the recorder measured of a batch while the free-running steps were timed; empty where it did not."""
    made = (run.own.loader or {}).get("made") if run is not None else None
    return made if isinstance(made, dict) else {}


def tensors_of(case: Analysis) -> int:
    """Tensors in a batch that a worker hands over; 0 where that was not counted."""
    count = made_of(case.folder).get("tensors")
    return count if isinstance(count, int) and count > 0 else 0


def workers_of(case: Analysis) -> int | None:
    """Number of loader workers: from the run, or else 0 unless the recording shows the iterator with workers; None if
    it shows that one without their number."""
    known = (case.run.loader or {}).get("num_workers") if case.run else None
    several = bool(case.ops_named(WITH_WORKERS.search).any())
    if isinstance(known, int) and (known > 0 or not several):
        return known
    return None if several else 0
