"""Fixed square filters, such as a Gaussian blur, in one convolution instead of one along each axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.gpu.square_filters import LEAST_FEWER_TAPS, SquareFilters, find_square_filters
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import nodes_in
from gpuprof.tracefile.trace import F64, I64
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

LEAST_FILTERS_SHARE: Assumed[Share] = 0.02
"""Smallest share of the step in such filters for a proposal."""

PAGE = Page(
    id="square_filters",
    title="A blur runs as one convolution with a square filter",
    means="""
A Gaussian or a box is a column of numbers times a row. A convolution with the whole square multiplies each value 121
times for a filter of 11 × 11; one along each axis gives the same with 22 multiplications, and 126 instead of 3,969 for
63 × 63. Blurs and elastic deformations of an augmentation, and the five windows of a structural similarity (SSIM), are
such filters. What shares a filter can also go through in one call: SSIM's five windows are one convolution of five
times the channels.
""",
    detected=f"""
Convolutions with one filter for each channel (`[channels, 1, k, k]`) of equal sides, whose values are at least
{LEAST_FEWER_TAPS:g} times the sum of the sides (9 × 9 and larger, 5 × 5 × 5), and for which no backward pass computes a
gradient of the filter. They take at least {percent(LEAST_FILTERS_SHARE)} % of the step on the GPU, forward and
backward. Not detected without shapes.
""",
    gain=f"""
Each kernel takes the share of its time that the sum of the sides is of the filter's values, times
{calibrated.LONG_FILTERS.value:g} ({calibrated.LONG_FILTERS.low:g} to {calibrated.LONG_FILTERS.high:g}, assumed), and no
less than reading and writing the tensor once for each side takes at {percent(calibrated.FUSED_MEMORY.value)} % of the
memory ceiling. The CPU launches one convolution for each side.
""",
    wrong=f"""
A filter that is no column times a row (a motion blur along a diagonal, a filter that was learned) cannot be split: the
recording shows its size, not its values. The probability is {percent(calibrated.SPLIT_FILTER_ODDS.value)} % (assumed).
Results differ in the last digit.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes one convolution along each axis."""
    found = find_square_filters(case)
    if found is None:
        return
    graph, which = case.graph, nodes_in(case.graph, found.stretches)
    gpu = (which >= 0) & graph.on_gpu
    took = case.per_step(float(graph.duration_ns[gpu].sum()))
    if took < LEAST_FILTERS_SHARE * case.step_ns:
        return
    size = " × ".join(f"{side:,}" for side in found.largest)
    text = (
        f"{len(found.left) / case.steps:,.0f} convolutions {case.unit.a} with a fixed filter of up to {size} for each"
        f" channel, {found.same} of the same shapes: {duration(took)} of GPU time"
    )
    yield Proposal(
        title="filters along one axis after another",
        evidence=spans(case, text, gpu),
        fix=code("x = F.conv2d(x, column, padding=(k // 2, 0), groups=channels)  # [channels, 1, k, 1]\n")
        + code("x = F.conv2d(x, row, padding=(0, k // 2), groups=channels)  # [channels, 1, 1, k]\n")
        + "# what shares the filter in one call: torch.cat along the channels",
        change=_split(case, found, which, 1),
        best=_split(case, found, which, 0),
        worst=_split(case, found, which, 2),
        odds=calibrated.SPLIT_FILTER_ODDS.value,
        needs="the filter is a column times a row, as a Gaussian or a box is",
    )


def _split(case: Analysis, found: SquareFilters, which: I64, level: int) -> Change:
    """Kernels of one convolution for each side; level: 0 at best, 2 at worst."""
    graph, count = case.graph, len(found.left)
    gpu, host = ((which >= 0) & each for each in (graph.on_gpu, ~graph.on_gpu & ~graph.waits))
    now: F64 = np.bincount(which[gpu], weights=graph.duration_ns[gpu], minlength=count).astype(np.float64)
    ceiling = case.roofline.ceilings.memory_bytes_per_s if case.roofline is not None else np.inf
    moved = 2 * found.bytes * found.sides / (ceiling * calibrated.FUSED_MEMORY.falling[level]) * 1e9
    then = np.maximum(now * found.left * calibrated.LONG_FILTERS.rising[level], moved)
    left = np.minimum(np.divide(then, now, out=np.ones(count), where=now > 0), 1.0)

    def change(graph: Graph) -> Graph:
        duration_ns = graph.duration_ns.copy()
        duration_ns[gpu] *= left[which[gpu]]
        duration_ns[host] *= found.sides[which[host]]
        return graph.with_durations(duration_ns)

    return change


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem("square filters in one convolution", "one along each axis gives the same, with fewer operations"),
    lowers=("slow_kernels",),
    synonyms=("gaussian_blur", "ssim", "separable_filter", "elastic_transform", "blur"),
    titles=("filters_along_one_axis_after_another",),
)
