"""Counters of Nsight Compute next to gpuprof's estimates for the same kernels, as lines."""

from __future__ import annotations

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.names import shown_kernel
from gpuprof.report.numbers import duration, percent
from gpuprof.units import Cells, Convention, Rows

ROWS: Convention[Rows] = 5
MOST_ROWS: Convention[Rows] = 10
NAME: Convention[Cells] = 36


def lines(diagnosis: Diagnosis, most: int = ROWS) -> list[str]:
    """How much agrees, and the largest kernels; empty without a table of counters."""
    found = diagnosis.counters
    if found is None:
        return []
    said = f"{percent(found.matched_share)} of the kernels' time is in the table"
    if found.agreeing_share is not None:
        said += f"; the counters agree with the limit of {percent(found.agreeing_share)} of it"
    rows = [
        f"{duration(one.ns)}  {shown_kernel(one.name, NAME)}: {one.claimed or 'not known'}; counted {one.counted}, "
        + ", ".join(
            f"{what} {value:.0f} %"
            for what, value in (
                ("tensor", one.tensor_percent),
                ("DRAM", one.dram_percent),
                ("SM", one.sm_percent),
                ("issue", one.issue_percent),
            )
            if value is not None
        )
        for one in found.largest[:most]
    ]
    return [said, *rows]
