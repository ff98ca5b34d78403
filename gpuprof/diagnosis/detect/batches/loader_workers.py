"""How many workers a DataLoader has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

WITH_WORKERS = re.compile(r"_MultiProcessing\w*Iter")
"""The iterator of a loader with workers."""


def workers_of(case: Analysis) -> int | None:
    """Number of loader workers: from the run, or else 0 unless the recording shows the iterator with workers; None if
    it shows that one without their number."""
    known = (case.run.loader or {}).get("num_workers") if case.run else None
    several = bool(case.ops_named(WITH_WORKERS.search).any())
    if isinstance(known, int) and (known > 0 or not several):
        return known
    return None if several else 0
