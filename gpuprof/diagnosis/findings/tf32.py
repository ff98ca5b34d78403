"""Matmuls in fp32 that do not use tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration.quoted import percent, us
from gpuprof.costs.dtypes import CODE
from gpuprof.costs.matmul_rates import computed_ns
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import NEGLIGIBLE_CHANGE, Absent, Page, Proposal
from gpuprof.diagnosis.detect.gpu.matmul_types import why_unknown
from gpuprof.diagnosis.detect.pair.candidates import Candidate, claim_where
from gpuprof.diagnosis.detect.pair.quantities import MOST_WORK_LEFT, kernel_counts, kernel_ns, quantity
from gpuprof.diagnosis.detect.pair.signs import advised
from gpuprof.diagnosis.result.fix import call
from gpuprof.diagnosis.sentences import count, duration
from gpuprof.replay.transform import scaled
from gpuprof.tracefile.trace import F64, Mask

if TYPE_CHECKING:
    from gpuprof.costs.roofline import Roofline
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.diagnosis.detect.pair.facts import Facts


PAGE = Page(
    id="tf32",
    title="fp32 matrix multiplications run without tensor cores",
    means="""
Matrix multiplications of fp32 tensors run on the GPU's ordinary fp32 units unless TF32 is allowed. TF32 has the range
of fp32 and ten bits of mantissa, and tensor cores multiply it several times faster. torch does not allow it for
matrix multiplications by default.
""",
    detected="""
Matrix multiplication kernels that have fp32 operands and no name of a tensor-core kernel, if they take at least 1 %
of the step.
""",
    gain=f"""
Each such matrix multiplication takes {us(calibrated.MATMUL_ADDED_NS.value)} µs and in addition √(a² + b²), but never
more than it took: a is the time of its FLOPs at {percent(calibrated.TF32_TENSOR.value)} % of the TF32 ceiling
({percent(calibrated.TF32_TENSOR.low)} to {percent(calibrated.TF32_TENSOR.high)} %), b that of its bytes at
{percent(calibrated.TF32_MEMORY.value)} % of the memory ceiling ({percent(calibrated.TF32_MEMORY.low)} to
{percent(calibrated.TF32_MEMORY.high)} %). The form of the formula comes from 2,877 recorded bf16 shapes.
""",
    wrong="""
If part of a matrix multiplication (a transpose, a cast) runs as a separate kernel, that kernel stays. Training in
bf16 gains more, with less precision. GPUs before Ampere have no TF32.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes TF32 for matmuls in fp32."""
    roof = case.roofline
    if roof is None or "tf32" not in roof.ceilings.flops:
        return
    graph, nodes = case.graph, _slow(case, roof)
    took = float(graph.duration_ns[nodes].sum())
    if case.per_step(took) < NEGLIGIBLE_CHANGE * case.mean_ns:
        return
    left = [_left(case, roof, nodes, level) for level in range(3)]
    whole = float(graph.duration_ns[graph.on_gpu].sum())
    text = (
        f"{case.per_step(nodes.sum()):,.0f} fp32 matrix multiplications {case.unit.a} without tensor cores: "
        f"{duration(case.per_step(took))}, "
        f"{100 * took / whole:,.0f} % of the GPU's time"
    )
    precision = call("torch.set_float32_matmul_precision", "high")
    yield Proposal(
        title="TF32 matrix multiplications",
        evidence=spans(case, text, nodes),
        fix=case.stack.fix(
            precision,
            case.stack.setting({"tf32": True}),
            lightning=precision,
        ).by("tf32"),
        change=partial(scaled, nodes=nodes, factor=left[1]),
        best=partial(scaled, nodes=nodes, factor=left[0]),
        worst=partial(scaled, nodes=nodes, factor=left[2]),
        changes="matrix multiplications round to TF32 (10 bits of mantissa)",
        claims=("matmul_types", "fp32_matmuls"),
    )


def _slow(case: Analysis, roof: Roofline) -> Mask:
    """Nodes of matrix multiplications in fp32 without tensor cores."""
    slow = (roof.work.dtype == CODE["fp32"]) & (roof.work.flops > 0) & case.category("gemm", "grouped_gemm")
    return case.nodes_of_gpu(slow)


def _absent(case: Analysis) -> str | None:
    if case.roofline is None:
        return None
    if "tf32" not in case.roofline.ceilings.flops:
        return "this GPU has no TF32"
    took = case.per_step(float(case.graph.duration_ns[_slow(case, case.roofline)].sum()))
    if took:
        return f"fp32 matrix multiplications without tensor cores take {duration(took)} {case.unit.a}"
    return why_unknown(case, case.roofline) or "no matrix multiplication runs in fp32 without tensor cores"


ABSENT = Absent("TF32 matrix multiplications", _absent)


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """The same matmuls of fp32 operands in less time, if only the slower side is advised to use TF32."""
    kind = ("gemm",)
    took, pieces = kernel_ns(a, b, kind), kernel_counts(a, b, kind)
    flops = quantity(a, b, lambda side: side.side.product_flops or 0)
    # Operands of another type are another change, although tensor cores multiply those as well.
    types = quantity(a, b, lambda side: side.counts.float32_matmuls)
    alike = not any(one.fell(to=MOST_WORK_LEFT) for one in (pieces, flops, types))
    if advised(a, b, PAGE.id, took) and alike and took.fell(to=MOST_WORK_LEFT):
        yield Candidate(
            PAGE.id,
            "matrix multiplications on tensor cores",
            f"{count(pieces.a)} matrix multiplications take {took.ms} ms of GPU time {a.unit.a}",
            claim_where(lambda cell: cell[:2] == ("busy", "gemm")),
            took.more,
        )


def _left(case: Analysis, roof: Roofline, nodes: Mask, level: int) -> F64:
    """Per node the share of its time that remains."""
    graph = case.graph
    left = np.ones(len(graph))
    rows = np.flatnonzero(nodes)
    event = graph.gpu_row[rows]
    ceilings, work, duration = roof.ceilings, roof.work, graph.duration_ns[rows]
    wanted = computed_ns(
        work.flops[event], np.nan_to_num(work.bytes[event]), ceilings.flops["tf32"], ceilings.memory_bytes_per_s,
        calibrated.TF32_TENSOR.falling[level], calibrated.TF32_MEMORY.falling[level],
    )  # fmt: skip
    left[rows] = np.divide(np.minimum(wanted, duration), duration, out=np.ones(len(rows)), where=duration > 0)
    return left


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    change=change,
    ledger=LedgerItem(
        "matrix multiplications in float32, without tensor cores",
        "PyTorch's default; TF32 has the same range and fewer digits, and uses tensor cores",
        stage="faster",
        changes_digits=True,
    ),
    lowers=("slow_matmuls",),
    synonyms=("allow_tf32", "float32_matmul_precision"),
    titles=("tf32_matrix_multiplications",),
)
