"""The columns that charts are made from."""

from __future__ import annotations

from gpuprof.diagnosis.diagnosis import Diagnosis
from gpuprof.diagnosis.tables import Tables
from gpuprof.errors import GpuprofError


def tables_of(diagnosis: Diagnosis) -> Tables | None:
    """The columns behind a diagnosis; None where nothing was recorded."""
    try:
        return diagnosis.tables
    except GpuprofError:
        return None
