"""The columns that charts are made from."""

from __future__ import annotations

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.tables import Tables
from gpuprof.errors import GpuprofError


def tables_of(diagnosis: Diagnosis) -> Tables | None:
    """The columns behind a diagnosis; None where nothing was recorded."""
    try:
        return diagnosis.tables
    except GpuprofError:
        return None
