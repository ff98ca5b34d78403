"""The predicted step after a fix."""

from __future__ import annotations

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.fixes.predicted_step import predict
from helpers.program import US


def after_us(case: Analysis, proposal) -> float:
    """The expected step, µs."""
    return predict(case, proposal).expected / US
