"""cuDNN chooses algorithms for convolutions of fixed shapes by its heuristics, without trying them, or only from
deterministic ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration.quoted import percent
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
"""Smallest share of GPU time in convolutions for a proposal."""
MOST_SHAPES: Assumed[Ratio] = 1.05
"""Largest number of different convolution shapes in all steps, over that of one step: with more, shapes vary, and
algorithms are tried again for each new one."""
DETERMINISTIC = "cudnn_deterministic"
CONVOLUTIONS = frozenset({"aten::cudnn_convolution", "aten::convolution_backward", "aten::cudnn_convolution_transpose"})

PAGE = Page(
    id="cudnn_benchmark",
    title="Convolutions of fixed shapes use algorithms chosen by heuristics",
    means="""
cuDNN has several algorithms for each convolution, and its heuristics guess which is the quickest. With
`torch.backends.cudnn.benchmark = True` each is tried once for each new shape, and the quickest is used from then on.

`torch.backends.cudnn.deterministic = True`, often copied with the lines that set seeds, leaves only algorithms whose
sums have a fixed order. The gradients of transposed, dilated and three-dimensional convolutions take several times as
long with these.
""",
    detected=f"""
The recorder notes that the switch is off. Convolutions take at least {percent(LEAST_CONVOLUTION_SHARE)} % of the GPU's
time, and their shapes are the same in each recorded step. Or: the recorder notes that cuDNN is restricted to
deterministic algorithms, whatever the shapes. Not detected in traces without a run.
""",
    gain=f"""
With faster algorithms convolutions take {calibrated.TUNED_CONVOLUTIONS.value:g} of their time
({calibrated.TUNED_CONVOLUTIONS.low:g} to {calibrated.TUNED_CONVOLUTIONS.high:g}, assumed); if any algorithm may be used
instead of only deterministic ones, {calibrated.ANY_ALGORITHM_LEFT.value:g} ({calibrated.ANY_ALGORITHM_LEFT.low:g} to
{calibrated.ANY_ALGORITHM_LEFT.high:g}, assumed).
""",
    wrong="""
The heuristics are often right, especially in half precision and `channels_last`. Where image sizes vary, each new
size costs a search: leave the switch off. Where results have to be the same to the last digit, keep
`cudnn.deterministic`; seeds give nearly the same results without it.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to let cuDNN try its algorithms, or to allow algorithms that are not deterministic."""
    program = case.run.program if case.run else None
    if program is None or program.switches is None or "deterministic" in program.switches:
        return
    graph = case.graph
    nodes = convolution_nodes(case)
    took, whole = (float(graph.duration_ns[mask].sum()) for mask in (nodes, graph.on_gpu))
    if took < LEAST_CONVOLUTION_SHARE * whole:
        return
    share = 100 * took / whole
    text = f"convolutions take {duration(case.per_step(took))} of GPU time {case.unit.a}, {share:,.0f} % of it;"
    tried = "cudnn_benchmark" in program.switches
    fixed = not tried and _shapes_are_fixed(case)
    if DETERMINISTIC in program.switches:
        best, usual, worst = (
            partial(scaled, nodes=nodes, factor=left) for left in calibrated.ANY_ALGORITHM_LEFT.rising
        )
        fix = assigned("torch.backends.cudnn.deterministic", False)
        yield Proposal(
            title="convolutions without cudnn.deterministic",
            evidence=spans(case, f"{text} torch.backends.cudnn.deterministic is on", nodes),
            fix=fix + "\n" + assigned("torch.backends.cudnn.benchmark", True) if fixed else fix,
            change=usual,
            best=best,
            worst=worst,
            changes="the last digits may differ from run to run",
            key="deterministic",
        )
        return
    if not fixed:
        return
    best, usual, worst = (partial(scaled, nodes=nodes, factor=left) for left in calibrated.TUNED_CONVOLUTIONS.rising)
    yield Proposal(
        title="convolution algorithms chosen by trying them",
        evidence=spans(case, f"{text} torch.backends.cudnn.benchmark is off, and their shapes do not change", nodes),
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
    synonyms=("cudnn", "benchmark", "convolution_algorithms", "cudnn_deterministic"),
    titles=("convolution_algorithms_chosen_by_trying_them", "convolutions_without_cudnn_deterministic"),
)
