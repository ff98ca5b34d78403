"""An optimizer multiplies matrices in float32, or one small matrix after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration import latency as latency_calibrated
from gpuprof.calibration import precision as precision_calibrated
from gpuprof.calibration.quoted import percent, us
from gpuprof.costs.dtypes import CODE
from gpuprof.costs.matmul_rates import half_precision_ns
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.gpu.optimizer_matmuls import Iterations, find_iterations, optimizer_nodes
from gpuprof.diagnosis.detect.gpu.replace_work import replacement_of, with_replacement
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import nodes_in
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Convention, Entries, Share

if TYPE_CHECKING:
    from gpuprof.costs.roofline import Roofline
    from gpuprof.diagnosis.analysis import Analysis, Change

LEAST_MATMULS_SHARE: Assumed[Share] = 0.03
"""Smallest share of the step's GPU time, or CPU time, in these multiplications for a proposal."""
FEWEST_OF_A_SHAPE: Assumed[Entries] = 4
"""Fewest iterations for each different shape for which stacking is proposed."""
HALF_THE_BYTES: Convention[Share] = 0.5
"""Bytes of a tensor in 16 bits, relative to 32."""

PAGE = Page(
    id="optimizer_matmuls",
    applies=("training",),
    title="The optimizer multiplies matrices in float32 or one by one",
    means="""
Muon makes each gradient orthogonal by an iteration of matrix multiplications; Shampoo and SOAP multiply it by
preconditioners. Gradients are in float32 where weights are, and autocast does not cover the optimizer's step, so these
multiplications run in float32, mostly without tensor cores, although their result is only a direction: Muon's authors
iterate in bf16. A model has many matrices of few shapes: one iteration for each launches thousands of small kernels,
which a stack of all matrices of one shape makes a few batched ones.
""",
    detected=f"""
Matrix multiplications of float32 operands in the step of an optimizer (its `Optimizer.step` range or its phase), if
they take {percent(LEAST_MATMULS_SHARE)} % of the GPU's time. An iteration: a norm, followed by at least six
multiplications of the sides of the same matrix; stacking is proposed for {FEWEST_OF_A_SHAPE} or more iterations for
each different shape. Not detected without shapes.
""",
    gain=f"""
In bf16 each multiplication takes what a 16-bit one of its FLOPs and bytes takes (as for `autocast`), and elementwise
kernels within the iteration take {percent(HALF_THE_BYTES)} % of their time (at worst all of it). Stacked, CPU time and
launches of the iterations shrink to those of one for each shape, and so does the fixed part of each kernel
({us(calibrated.MATMUL_ADDED_NS.value)} µs for a multiplication, {us(latency_calibrated.FLOOR_NS.value)} µs for the
others); copies into the stack are added.
""",
    wrong=f"""
Inverse roots and eigenvectors (Shampoo, SOAP) need float32; multiplications by them mostly do not: where there is no
iteration, the probability is {percent(precision_calibrated.PRECONDITIONER.value)} % (assumed). A stack holds all
gradients of one shape at once, which takes memory as they do.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes bf16 for an optimizer's multiplications, and stacks of matrices of one shape."""
    roof = case.roofline
    if roof is None or "bf16" not in roof.ceilings.flops:
        return
    found, graph = find_iterations(case), case.graph
    which = np.full(len(graph), -1, np.int64) if found is None else nodes_in(graph, found.stretches)
    matmuls = case.nodes_of_gpu(case.category("gemm", "grouped_gemm") & (roof.work.flops > 0))
    single = case.nodes_of_gpu(np.isin(roof.work.dtype, [CODE["fp32"], CODE["tf32"]]))
    wide = matmuls & single & ((which >= 0) if found is not None else optimizer_nodes(case))
    whole = float(graph.duration_ns[graph.on_gpu].sum())
    took = float(graph.duration_ns[wide].sum())
    if took >= LEAST_MATMULS_SHARE * whole:
        iterated = found is not None
        text = (
            f"{case.per_step(float(wide.sum())):,.0f} matrix multiplications {case.unit.a} in the optimizer have"
            f" float32 operands: {duration(case.per_step(took))}, {100 * took / whole:.0f} % of the GPU's time"
        )
        yield Proposal(
            title="optimizer matrix multiplications in bf16",
            evidence=spans(case, text, wide),
            fix=code("x = gradient.bfloat16()")
            + "  # for the multiplications; .float() for the update"
            + (" (torch.optim.Muon does the same)" if iterated else ""),
            change=_in_bf16(case, roof, wide, which, 1),
            best=_in_bf16(case, roof, wide, which, 0),
            worst=_in_bf16(case, roof, wide, which, 2),
            changes="the optimizer's matrix multiplications round to bf16 (8 bits of mantissa)",
            odds=1.0 if iterated else precision_calibrated.PRECONDITIONER.value,
            needs="" if iterated else "what is multiplied needs no more than 8 bits of mantissa",
            claims=("fp32_matmuls",),
            item=("the optimizer's matrix multiplications in float32", "they only find a direction"),
        )
    if found is not None:
        yield from _stacked(case, roof, found, which, matmuls, wide)


def _stacked(
    case: Analysis, roof: Roofline, found: Iterations, which: I64, matmuls: Mask, wide: Mask
) -> Iterator[Proposal]:
    """Proposes one iteration for all matrices of one shape, in bf16 where they are in float32."""
    graph, (each, shapes) = case.graph, found.of_one_shape()
    host = (which >= 0) & ~graph.on_gpu & ~graph.waits
    host_ns = case.per_step(float(graph.duration_ns[host].sum()))
    gpu_ns = case.per_step(float(graph.duration_ns[(which >= 0) & graph.on_gpu].sum()))
    if each < FEWEST_OF_A_SHAPE * shapes or max(host_ns, gpu_ns) < LEAST_MATMULS_SHARE * case.step_ns:
        return
    pieces = case.per_step(float(((which >= 0) & graph.on_gpu).sum()))
    text = (
        f"{each:,} iterations of matrix multiplications in the optimizer's step are on matrices of {shapes} shapes:"
        f" {pieces:,.0f} kernels {case.unit.a}, {duration(host_ns)} of CPU time and {duration(gpu_ns)} of GPU time"
    )
    in_bf16 = bool(wide.any())
    yield Proposal(
        title="optimizer matrices of one shape stacked",
        evidence=spans(case, text, which >= 0),
        fix=code("x = torch.stack(gradients)" + (".bfloat16()" if in_bf16 else ""))
        + "  # all of one shape: norms over dim=(-2, -1), x @ x.mT\n"
        + code("torch._foreach_add_(weights, list(x.float().unbind()), alpha=-lr)"),
        change=_on_stacks(case, roof, found, which, matmuls, wide, 1),
        best=_on_stacks(case, roof, found, which, matmuls, wide, 0),
        worst=_on_stacks(case, roof, found, which, matmuls, wide, 2),
        changes="the optimizer's matrix multiplications round to bf16 (8 bits of mantissa)" if in_bf16 else "",
        claims=("fp32_matmuls",) if in_bf16 else (),
        item=("the optimizer's matrix multiplications, one matrix after another", "those of one shape can be stacked"),
        key="stacked",
    )


def _on_stacks(
    case: Analysis, roof: Roofline, found: Iterations, which: I64, matmuls: Mask, wide: Mask, level: int
) -> Change:
    """The graph with one iteration for each shape. level: 0 at best, 1 usually, 2 at worst."""
    graph, count = case.graph, int(found.step.max()) + 1
    each, shapes = found.of_one_shape()
    left = shapes / each
    group = np.where(which >= 0, found.step[which], -1)
    group[graph.waits] = -1
    host, gpu = (group >= 0) & ~graph.on_gpu, (group >= 0) & graph.on_gpu
    single = _in_bf16(case, roof, wide, which, level)(graph).duration_ns
    fixed = np.where(matmuls, calibrated.MATMUL_ADDED_NS.value, float(latency_calibrated.FLOOR_NS.value))
    then = np.maximum(single - (1 - left) * np.minimum(fixed, single), 0.0)
    elements = np.array([float(np.prod(shape)) for shape in found.shapes])
    # Read and written once, four bytes each way.
    copied = np.bincount(found.step, weights=elements, minlength=count) * 8 / roof.ceilings.memory_bytes_per_s * 1e9
    host_ns: F64 = np.bincount(group[host], weights=graph.duration_ns[host], minlength=count).astype(np.float64)
    gpu_ns: F64 = np.bincount(group[gpu], weights=then[gpu], minlength=count).astype(np.float64) + copied
    launches = np.ceil(np.bincount(group[gpu], minlength=count) * left).astype(np.int64)
    new = replacement_of(graph, group, host_ns * left, gpu_ns, launches)
    return lambda graph: with_replacement(graph, new)


def _in_bf16(case: Analysis, roof: Roofline, wide: Mask, which: I64, level: int) -> Change:
    """The graph with these multiplications in 16 bits, and the iterations' elementwise kernels on half the bytes."""
    graph = case.graph
    rows = np.flatnonzero(wide)
    event = graph.gpu_row[rows]
    ceilings, work = roof.ceilings, roof.work
    moved = np.nan_to_num(work.bytes[event]) * HALF_THE_BYTES
    wanted = half_precision_ns(work.flops[event], moved, ceilings.flops["bf16"], ceilings.memory_bytes_per_s, level)
    wide_ones = np.unique(which[rows])
    between = case.nodes_of_gpu(case.category("elementwise", "cast/copy")) & np.isin(which, wide_ones[wide_ones >= 0])
    left = (HALF_THE_BYTES, HALF_THE_BYTES, 1.0)[level]

    def change(graph: Graph) -> Graph:
        took = graph.duration_ns.copy()
        took[rows] = np.minimum(took[rows], wanted)
        least = np.minimum(took[between], latency_calibrated.ELEMENTWISE_NS.value)
        took[between] = np.maximum(took[between] * left, least)
        return graph.with_durations(took)

    return change


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem("the optimizer's matrix multiplications", stage="faster", changes_digits=True),
    lowers=("slow_matmuls",),
    synonyms=("muon", "shampoo", "soap", "newton_schulz", "orthogonalise", "preconditioner"),
    titles=(
        "optimizer_matrix_multiplications_in_bf16",
        "optimizer_matrices_of_one_shape_stacked",
    ),
)
