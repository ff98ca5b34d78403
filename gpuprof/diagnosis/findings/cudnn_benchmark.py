"""cuDNN chooses algorithms for convolutions of fixed shapes by its heuristics, without trying them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import assigned
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.transform import scaled
from gpuprof.tracefile.trace import KERNEL, Mask
from gpuprof.units import Assumed, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_CONVOLUTION_SHARE: Assumed[Share] = 0.1
"""Share of the GPU's time in convolutions from which on another algorithm may gain something."""
MOST_SHAPES: Assumed[Ratio] = 1.05
"""Different shapes of convolutions in all steps, over those of a step: with more of them shapes vary, and each new one
is tried out again."""
CONVOLUTIONS = frozenset({"aten::cudnn_convolution", "aten::convolution_backward", "aten::cudnn_convolution_transpose"})

PAGE = Page(
    id="cudnn_benchmark",
    title="Convolutions of fixed shapes use algorithms chosen by heuristics",
    means="""
cuDNN has several algorithms for each convolution, and its heuristics guess which is the quickest. With
`torch.backends.cudnn.benchmark = True` each is tried once for each new shape, and the quickest is used from then on.
""",
    detected="""
The recorder notes that the switch is off. Convolutions take at least 10 % of the GPU's time, and their shapes are the
same in each recorded step. Not detected in traces without a run.
""",
    gain="""
With faster algorithms convolutions take 0.88 of their time (0.65 to 1, assumed).
""",
    wrong="""
The heuristics are often right, especially in half precision and `channels_last`. Where image sizes vary, each new
size costs a search: leave the switch off.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Algorithms that were tried."""
    program = case.run.program if case.run else None
    if program is None or program.switches is None or {"cudnn_benchmark", "deterministic"} & set(program.switches):
        return
    graph = case.graph
    nodes = convolution_nodes(case)
    took, whole = (float(graph.duration_ns[mask].sum()) for mask in (nodes, graph.on_gpu))
    if took < LEAST_CONVOLUTION_SHARE * whole or not _shapes_are_fixed(case):
        return
    text = (
        f"convolutions take {duration(case.per_step(took))} of GPU time {case.unit.a},"
        f" {100 * took / whole:,.0f} % of it;"
        " torch.backends.cudnn.benchmark is off, and their shapes stay"
    )
    best, usual, worst = (partial(scaled, nodes=nodes, factor=left) for left in calibrated.TUNED_CONVOLUTIONS.rising)
    yield Proposal(
        title="convolution algorithms that were tried",
        evidence=spans(case, text, nodes),
        fix=assigned("torch.backends.cudnn.benchmark", True),
        change=usual,
        best=best,
        worst=worst,
        changes="other algorithms may round differently",
    )


def convolution_nodes(case: Analysis) -> Mask:
    """Kernels of convolutions."""
    kernels = np.append(case.trace.gpu.kind == KERNEL, False)[case.graph.gpu_row]
    return case.nodes_within(case.ops_named(CONVOLUTIONS.__contains__)) & case.graph.on_gpu & kernels


def _shapes_are_fixed(case: Analysis) -> bool:
    """Whether all steps have convolutions of the same shapes."""
    ops, steps = case.trace.ops, case.timeline.steps
    rows = np.flatnonzero(case.ops_named(CONVOLUTIONS.__contains__))
    step = np.searchsorted(steps.start_ns, ops.start_ns[rows], side="right")
    each = [len(np.unique(ops.dims[rows[step == one]])) for one in np.unique(step).tolist()]
    return bool(each) and len(np.unique(ops.dims[rows])) <= MOST_SHAPES * max(each)


FINDING = Declaration(
    page=PAGE,
    find=find,
    lowers=("slow_matmuls",),
    synonyms=("cudnn", "benchmark", "convolution_algorithms"),
    titles=("convolution_algorithms_that_were_tried",),
)
