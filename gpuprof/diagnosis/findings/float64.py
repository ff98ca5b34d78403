"""Kernels that compute in float64, which hardly any training needs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import latency as latency_calibrated
from gpuprof.calibration import precision as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.costs.dtypes import type_in_kernel_name
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.transform import scaled
from gpuprof.tracefile.trace import F64, Mask
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_KERNEL_SHARE: Assumed[Share] = 0.02
"""Smallest share of GPU time of such kernels for a proposal: a single sum in float64 takes less."""
MATMULS = ("gemm", "grouped_gemm")

PAGE = Page(
    id="float64",
    title="Kernels compute in float64",
    means="""
A tensor made from a NumPy array or by `.double()` has 64 bits per value, and so does everything computed from it.
That is twice the memory traffic of fp32, four times that of bf16, on units that most GPUs have few of (a 64th of the
fp32 rate on consumer cards). fp32 is wide enough for norms, losses and rotary embeddings.
""",
    detected=f"""
Kernels whose names mention `double` first, other than copies between CPU and GPU, if they take at least
{percent(LEAST_KERNEL_SHARE)} % of the GPU's time.
""",
    gain=f"""
Memory-bound kernels take {calibrated.FP64_LEFT.value:g} ({calibrated.FP64_LEFT.low:g} to {calibrated.FP64_LEFT.high:g},
assumed) of their time in fp32: half the bytes, but casts to and from 16 bits keep more. None gets shorter than the
shortest kernels of its kind. Matrix multiplications speed up by the ratio of the GPU's fp32 and fp64 rates where both
are known, otherwise by 2.
""",
    wrong="""
Sums over very many values, and what is compared with a reference in fp64, may need it: compare the loss of a short run.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes fp32 instead of fp64."""
    nodes = wide_nodes(case)
    took, whole = (float(case.graph.duration_ns[mask].sum()) for mask in (nodes, case.graph.on_gpu))
    if not took or took < LEAST_KERNEL_SHARE * whole:
        return
    text = (
        f"{case.per_step(nodes.sum()):,.0f} kernels {case.unit.a} compute in float64:"
        f" {duration(case.per_step(took))}, {100 * took / whole:,.0f} % of the GPU's time"
    )
    usual, best, worst = (_left(case, nodes, level) for level in (1, 0, 2))
    yield Proposal(
        title="fp32 in place of fp64",
        evidence=spans(case, text, nodes),
        fix=code("tensor.float()") + "  # where it becomes float64: .double(), NumPy arrays, torch.float64",
        change=partial(scaled, nodes=nodes, factor=usual),
        best=partial(scaled, nodes=nodes, factor=best),
        worst=partial(scaled, nodes=nodes, factor=worst),
        changes="what is computed in fp64 rounds to fp32 (24 bits of mantissa)",
    )


def wide_nodes(case: Analysis) -> Mask:
    """Nodes of kernels with float64 in their names."""
    rows = case.trace.rows_named(case.trace.gpu.name, lambda text: type_in_kernel_name(text) == "double")
    return case.nodes_of_gpu(rows) & case.graph.on_gpu


def _left(case: Analysis, nodes: Mask, level: int) -> F64:
    """Per node the share of its time that remains in fp32. level: 0 at best."""
    now = np.maximum(case.graph.duration_ns, 1.0)
    matmuls = case.nodes_of_gpu(case.category(*MATMULS))
    left = np.where(matmuls, _matmul_share(case), calibrated.FP64_LEFT.rising[level])
    floor = np.minimum(
        np.where(matmuls, latency_calibrated.MATMUL_NS.value, latency_calibrated.ELEMENTWISE_NS.value), now
    )
    return np.where(nodes, np.maximum(left * now, floor) / now, 1.0)


def _matmul_share(case: Analysis) -> float:
    """Time of a matrix multiplication in fp32 / in fp64."""
    rates = {} if case.roofline is None else case.roofline.ceilings.flops
    wide, single = rates.get("fp64"), rates.get("fp32")
    return min(wide / single, 1.0) if wide and single else 0.5


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "kernels in float64",
        "four times the bytes of 16 bits, and a fraction of their rate",
        stage="faster",
        changes_digits=True,
    ),
    synonyms=("fp64", "double", "double_precision"),
    titles=("fp32_in_place_of_fp64",),
)
