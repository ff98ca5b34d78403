"""Why number formats of matrix multiplications cannot be advised on: what the GPU has, and what a recording holds."""

from __future__ import annotations

from gpuprof.costs.roofline import Roofline
from gpuprof.diagnosis.case import Case
from gpuprof.diagnosis.sentences import in_ms

MOST = 0.5
"""Of the time of matrix multiplications; with more of it of unknown operands nothing is said of the formats."""


def why_unknown(case: Case, roof: Roofline) -> str | None:
    """Why nothing can be said about the formats that are multiplied in; None where most operands were recorded."""
    products = case.category("gemm", "grouped_gemm")
    took = case.gpu_ns(products)
    unknown = case.gpu_ns(products & ~(roof.work.flops > 0))
    if unknown <= MOST * took:
        return None
    each = case.per_step(unknown)
    return f"matrix multiplications take {in_ms(each)} a step, and their operands are not known from this recording"
