"""Attention that runs in fp32 because its inputs were cast up, in a model with 16-bit weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.attention.cast_up import (
    CAST_BYTES_AN_ELEMENT,
    LEAST_SHARE_IN_16_BIT,
    CastUp,
    find_cast_up,
    half_attention_ns,
)
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import Code, assigned
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import removed
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.costs.roofline import Roofline
    from gpuprof.diagnosis.analysis import Analysis, Change

LEAST_KERNEL_SHARE: Assumed[Share] = 0.02
"""Smallest share of the GPU's time of such attention for a proposal."""
_TYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}

PAGE = Page(
    id="wide_attention",
    title="Attention gets fp32 inputs in a 16-bit model",
    means="""
Rotary embeddings and norms of queries and keys are computed in fp32, and their results stay in fp32; the values are
then cast to fp32 as well, so that attention accepts them. There is no flash kernel for fp32: attention runs in a kernel
that takes many times as long, and moves twice the bytes. Rotate in fp32 and cast queries and keys back to the type of
the weights.
""",
    detected=f"""
Fused attention with queries in fp32, by recorded types, that takes {percent(LEAST_KERNEL_SHARE)} % of the GPU's time at
least, where {percent(LEAST_SHARE_IN_16_BIT)} % of the time of matrix multiplications or more is in bf16 or fp16. Where
most of them are in fp32 as well, see the finding `autocast`.
""",
    gain=f"""
Attention takes the time of its FLOPs at {percent(calibrated.ATTENTION_FORWARD.value)} % of the tensor ceiling forward
and {percent(calibrated.ATTENTION_BACKWARD.value)} % backward, at the lowest share of the finding `eager_attention` with
a mask as a tensor, and never longer than now. Casts to fp32 directly before it and from fp32 directly after it are
removed (at worst they stay); queries, keys and values without such a cast get one, and so do their gradients, at
{percent(calibrated.FUSED_MEMORY.value)} % of the memory ceiling ({percent(calibrated.FUSED_MEMORY.low)} to
{percent(calibrated.FUSED_MEMORY.high)} %).
""",
    wrong="""
A model that computes attention in fp32 on purpose, since its scores are large, may need it: compare the loss of a short
run. Scores and sums are in fp32 inside flash kernels too.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes queries, keys and values in the type of the weights."""
    found, roof = find_cast_up(case), case.roofline
    if found is None or roof is None:
        return
    graph = case.graph
    took, whole = float(graph.duration_ns[found.nodes].sum()), float(graph.duration_ns[graph.on_gpu].sum())
    if took < LEAST_KERNEL_SHARE * whole:
        return
    nodes = np.zeros(len(graph), bool)
    nodes[found.nodes] = True
    text = (
        f"attention gets queries, keys and values in float32, for which there is no flash kernel, while"
        f" {100 * found.half_share:,.0f} % of the time of matrix multiplications is in {found.half}:"
        f" {duration(case.per_step(took))} {case.unit.a}, {100 * took / whole:,.0f} % of the GPU's time"
    )
    inputs = Code(f"(x.to({_TYPES[found.half]}) for x in (q, k, v))")
    yield Proposal(
        title="flash attention in half precision",
        evidence=spans(case, text, nodes),
        fix=assigned("q, k, v", inputs) + "  # once they are rotated, before scaled_dot_product_attention",
        change=_narrow(case, roof, found, 1),
        best=_narrow(case, roof, found, 0),
        worst=_narrow(case, roof, found, 2),
        changes=f"attention rounds its inputs to {found.half}, as the layers around it do",
        claims=("attention",),
    )


def _narrow(case: Analysis, roof: Roofline, found: CastUp, level: int) -> Change:
    """The graph with this attention in 16 bits. level: 0 at best, 2 at worst."""
    at, lowest = (half_attention_ns(case, roof, found.nodes, found.half, one) for one in (level, 2))
    rate = roof.ceilings.memory_bytes_per_s * calibrated.FUSED_MEMORY.falling[level]
    casts_ns = found.missing * CAST_BYTES_AN_ELEMENT / rate * 1e9
    attention_ns = np.where(found.masked, lowest, at)
    gone = np.zeros(len(case.graph), bool)
    gone[found.casts] = level < 2

    def change(graph: Graph) -> Graph:
        less = removed(graph, gone)
        duration_ns = less.duration_ns.copy()
        duration_ns[found.nodes] = np.minimum(duration_ns[found.nodes], attention_ns) + casts_ns
        return less.with_durations(duration_ns)

    return change


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "attention in float32", "its inputs were cast up: no flash kernel takes them", changes_digits=True
    ),
    lowers=("slow_attention",),
    synonyms=("float32_attention", "fp32_attention", "rotary_float32"),
    titles=("flash_attention_in_half_precision",),
)
