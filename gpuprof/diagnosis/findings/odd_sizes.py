"""Matrix multiplications whose sizes do not fit tensor cores: a vocabulary of 50,257, a layer of 1,001 units."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.costs.dtypes import CODE
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.gpu.kernel_reach import GEMM, kernel_reach
from gpuprof.diagnosis.detect.gpu.linear_layers import ALIGNED_ELEMENTS
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.diagnosis.result.fix import Fix, as_fix, call, joined
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.transform import scaled
from gpuprof.tracefile.trace import F64, KERNEL, Mask
from gpuprof.units import Assumed, Elements, Published, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_MATMUL_SHARE: Assumed[Share] = 0.03
"""Smallest share of the step that such kernels take beyond their reach for a proposal."""
PADDED_TO: Published[Elements] = 64
"""A multiple of this fits the tiles of all libraries."""
_MATMULS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})

PAGE = Page(
    id="odd_sizes",
    title="Matrix multiplications of sizes that do not suit tensor cores",
    means="""
Fast tensor-core kernels load 16 bytes at a time: 8 values in bf16 or fp16. Where the rows of a weight are not aligned
to that, as in a vocabulary of 50,257 tokens or a layer of 1,001 units, libraries fall back to kernels that load value
by value and reach a fraction of the rate. The output layer is the largest matrix multiplication of a small model, so
this alone can cost a fifth of a step.
""",
    detected=f"""
16-bit matrix multiplications that take longer than 90 % of those of their size, where a dimension of the layer's weight
is not a multiple of 8, if they exceed their usual time by at least {percent(LEAST_MATMUL_SHARE)} % of the step. Sizes
of weights are read from the shapes of `aten::linear`, `aten::addmm` and `aten::embedding`; tokens of a batch may be any
number.
""",
    gain=f"""
These kernels take {calibrated.ALIGNED_LEFT.value:g} times ({calibrated.ALIGNED_LEFT.low:g} to
{calibrated.ALIGNED_LEFT.high:g}, assumed) what kernels of their size usually take. Loss and softmax over aligned rows
get faster, too, which is not counted.
""",
    wrong=f"""
Kernels may be slow for another reason (few blocks, an old library), so the probability is
{percent(calibrated.ALIGNED_ODDS.value)} % (assumed). The added rows of a vocabulary are never a label, but they take
part in the softmax: their logits become small within a few steps.
""",
)


class OddMatmuls(NamedTuple):
    """Matrix multiplications that are slow because of a size."""

    nodes: Mask
    reach: F64
    """Per node the share of its time that is left at its reach."""
    size: int
    """The odd size whose kernels take most time."""


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to round sizes up to a multiple of PADDED_TO."""
    found = odd_matmuls(case)
    if found is None:
        return
    graph = case.graph
    took = float(graph.duration_ns[found.nodes].sum())
    above = float((graph.duration_ns * (1 - found.reach))[found.nodes].sum())
    if case.per_step(above) < LEAST_MATMUL_SHARE * case.step_ns:
        return
    padded = -(-found.size // PADDED_TO) * PADDED_TO
    text = (
        f"{case.per_step(found.nodes.sum()):,.0f} matrix multiplications {case.unit.a} have a size such as"
        f" {found.size:,}, which is not a multiple of {ALIGNED_ELEMENTS}: {duration(case.per_step(took))}, and"
        f" {duration(case.per_step(took - above))} at the usual rate"
    )
    best, usual, worst = (_left(found, times) for times in calibrated.ALIGNED_LEFT.rising)
    yield Proposal(
        title=f"sizes in multiples of {PADDED_TO}",
        evidence=spans(case, text, found.nodes),
        fix=_fix(case, found.size, padded),
        change=partial(scaled, nodes=found.nodes, factor=usual),
        best=partial(scaled, nodes=found.nodes, factor=best),
        worst=partial(scaled, nodes=found.nodes, factor=worst),
        odds=calibrated.ALIGNED_ODDS.value,
        needs="the kernels are slow for their sizes, and for no other reason",
        changes=f"{padded - found.size:,} more rows in the layer, which are not used",
    )


def odd_matmuls(case: Analysis) -> OddMatmuls | None:
    """Slow matrix multiplications in 16 bits with a weight of an odd size; None where there are none."""
    odd = _odd_weights(case)
    if not odd or case.roofline is None:
        return None
    reach, work, gpu = kernel_reach(case.timeline, case.roofline), case.roofline.work, case.trace.gpu
    half = np.isin(work.dtype, (CODE["bf16"], CODE["fp16"]))
    op = case.timeline.links.op
    matmuls = np.append(case.ops_named(_MATMULS.__contains__), False)[op]
    rows = np.flatnonzero(reach.slow & half & matmuls & (reach.kind == GEMM) & (gpu.kind == KERNEL))
    sizes = {text: _largest(odd, shapes_in(case, text)) for text in np.unique(case.trace.ops.dims[op[rows]]).tolist()}
    size = np.array([sizes[text] for text in case.trace.ops.dims[op[rows]].tolist()], np.int64)
    rows, size = rows[size > 0], size[size > 0]
    ns = (gpu.end_ns - gpu.start_ns).astype(np.float64)
    if not len(rows):
        return None
    chosen = np.zeros(len(gpu), bool)
    chosen[rows] = True
    share = np.append(np.where(chosen, np.divide(reach.reach_ns, ns, out=np.ones(len(ns)), where=ns > 0), 1.0), 1.0)
    nodes = case.nodes_of_gpu(chosen) & case.graph.on_gpu
    each, inverse = np.unique(size, return_inverse=True)
    return OddMatmuls(
        nodes, share[case.graph.gpu_row], int(each[np.bincount(inverse.ravel(), weights=ns[rows]).argmax()])
    )


def _odd_weights(case: Analysis) -> frozenset[int]:
    """Sizes of the layers' weights that are no multiples of ALIGNED_ELEMENTS."""
    ops, found = case.trace.ops, set[int]()
    for name, at in (("aten::linear", 1), ("aten::embedding", 0), ("aten::addmm", 0)):
        for text in np.unique(ops.dims[case.ops_named(name.__eq__)]).tolist():
            shapes = shapes_in(case, text)
            found.update(shapes[at] or () if len(shapes) > at else ())
    return frozenset(n for n in found if n > ALIGNED_ELEMENTS and n % ALIGNED_ELEMENTS)


def _largest(odd: frozenset[int], shapes: list[tuple[int, ...] | None]) -> int:
    """The largest size of a matrix multiplication that is one of the odd ones; 0 if none is."""
    return max((n for shape in shapes for n in shape or () if n in odd), default=0)


def _left(found: OddMatmuls, times: float) -> F64:
    return np.where(found.nodes, np.minimum(times * found.reach, 1.0), 1.0)


def _fix(case: Analysis, size: int, padded: int) -> Fix:
    model = (case.run.model or {}) if case.run else {}
    if size != model.get("vocabulary"):
        return as_fix(f"a layer of {padded:,} in place of {size:,}; leave the outputs beyond {size:,} out of the loss")
    own = call("torch.nn.Embedding", padded, ...) + f"  # and the output layer; tokens are still below {size:,}"
    if not case.stack.from_transformers:
        return own
    return joined((call("model.resize_token_embeddings", pad_to_multiple_of=PADDED_TO), own.otherwise()), "\nor ")


FINDING = Declaration(
    page=PAGE,
    find=find,
    lowers=("slow_matmuls",),
    synonyms=("alignment", "vocabulary_size", "tensor_core_alignment"),
    titles=("sizes_in_multiples_of",),
)
