"""Counters of Nsight Compute next to gpuprof's estimates for the same kernels, as lines."""

from __future__ import annotations

from gpuprof.diagnosis.result.counters_model import CountedKernel, Limiter
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.names import shown_kernel
from gpuprof.report.numbers import duration, percent
from gpuprof.units import Cells, Convention, Rows

ROWS: Convention[Rows] = 5
MOST_ROWS: Convention[Rows] = 10
NAME: Convention[Cells] = 36
_LIMITERS: dict[Limiter, str] = {
    "tensor": "compute", "issue": "compute, by instructions", "memory": "memory", "latency": "latency",
}  # fmt: skip
"""What the busiest counter means for the limit."""


def lines(diagnosis: Diagnosis, most: int = ROWS) -> list[str]:
    """How much agrees, and the largest kernels; empty without a table of counters."""
    found = diagnosis.counters
    if found is None:
        return []
    said = f"{percent(found.matched_share)} of the kernels' time is in the table"
    if found.agreeing_share is not None:
        said += f"; the counters agree with the limit of {percent(found.agreeing_share)} of it"
    return [said, *map(_line, found.largest[:most])]


def _line(one: CountedKernel) -> str:
    """`4.1 ms  nvjet_sm90_tst: compute; the counters agree: tensor pipes 94 %, DRAM 19 %, SMs 90 %`."""
    counters = (
        ("tensor pipes", one.tensor_percent),
        ("DRAM", one.dram_percent),
        ("SMs", one.sm_percent),
        ("issue slots", one.issue_percent),
    )
    used = ", ".join(f"{what} {value:.0f} %" for what, value in counters if value is not None)
    verb = "agree" if one.agrees else f"say {_LIMITERS[one.counted]}"
    name, claimed = shown_kernel(one.name, NAME), one.claimed or "not known"
    return f"{duration(one.ns)}  {name}: {claimed}; the counters {verb}: {used}"
