"""Convolutions whose inputs and outputs are converted from one memory layout to another and back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import images as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import Code, assigned, call, joined
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import removed, scaled
from gpuprof.tracefile.trace import F64, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

CONVERSION = re.compile(r"nchwToNhwc|nhwcToNchw", re.IGNORECASE)
"""cuDNN's kernels that convert a tensor for a convolution, and its result back."""
CONVOLUTION = re.compile(r"conv(?!ert)", re.IGNORECASE)
"""Ops that convolve, forward and backward."""
GROUP_NORMS = frozenset({"aten::native_group_norm", "aten::native_group_norm_backward"})
"""Ops without a channels_last kernel on a GPU: torch copies their input to channels first, with a kernel far slower
than cuDNN's conversions, and later ops may get either layout."""
NORMS = (
    ("native_batch_norm", calibrated.BATCH_NORM),
    ("native_batch_norm_backward", calibrated.BATCH_NORM_BACKWARD),
)

LAYOUT = Code("torch.channels_last")

PAGE = Page(
    id="channels_last",
    title="Convolutions convert the memory layout of their tensors",
    means="""
Tensor cores convolve tensors whose channels are adjacent in memory (NHWC, `channels_last`). By default torch stores
images channel by channel (NCHW), so cuDNN converts the input of every convolution, and often its output back, with
separate kernels that read and write the whole tensor. A model and inputs in `channels_last` need none of them; the
training stays the same.
""",
    detected="""
Kernels named `nchwToNhwc` or `nhwcToNchw` that convolutions launch.
""",
    gain=f"""
The conversions and their launches are taken out. Batch norms in training mode keep
{percent(calibrated.BATCH_NORM.value)} % of their time forward and {percent(calibrated.BATCH_NORM_BACKWARD.value)} %
backward (at worst all), and summing gradients of biases takes {calibrated.BIAS.value:g} times as long
({calibrated.BIAS.low:g} to {calibrated.BIAS.high:g}), as measured on an H200. Each group norm costs as much as
{calibrated.GROUP_NORM_COPIES.value:g} conversions ({calibrated.GROUP_NORM_COPIES.low:g} to
{calibrated.GROUP_NORM_COPIES.high:g}): on a GPU torch has no `channels_last` kernel for them and copies their input. At
worst another {percent(calibrated.OTHER_COPIES.high)} % of the conversions' time comes back as copies around other ops.
""",
    wrong="""
Networks with a group norm before each convolution (the UNet and the VAE of most diffusion models) get slower in
`channels_last` as long as torch runs their group norms itself: 16.2 ms became 23.0 ms on an H200. If `torch.compile`
fuses the group norms, both together can gain. Any other op without a `channels_last` kernel also copies its input:
look for `aten::copy_` in a new recording. Depthwise convolutions and networks with few channels can be slower.
Convert the inputs as well: one tensor in the other layout is enough to convert each layer's input again.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes a model and inputs in channels_last."""
    rows = _conversions(case)
    if not rows.any():
        return
    graph = case.graph
    nodes = case.nodes_of_gpu(rows) & graph.on_gpu
    count, took = int(nodes.sum()), case.per_step(float(graph.duration_ns[nodes].sum()))
    whole = case.per_step(float(graph.duration_ns[graph.on_gpu].sum()))
    text = (
        f"{case.per_step(count):,.0f} kernels {case.unit.a} convert tensors for convolutions from one memory layout to "
        f"another: {duration(took)}, {100 * took / max(whole, 1.0):,.0f} % of the GPU's time"
    )
    norms = _in_window(case, GROUP_NORMS)
    if norms:
        text += f"; each of {case.per_step(norms):,.0f} group norms will copy its input instead"
    change = [_change(case, rows, norms / max(count, 1), level) for level in range(3)]
    yield Proposal(
        title="channels_last",
        evidence=spans(case, text, nodes),
        fix=joined([assigned(name, call(f"{name}.to", memory_format=LAYOUT)) for name in ("model", "images")]).by(
            "channels_last"
        )
        + "  # every batch, before the model",
        change=change[1],
        best=change[0],
        worst=change[2],
    )


def _conversions(case: Analysis) -> Mask:
    """GPU events that convert a layout for a convolution; all conversions if ops were not recorded."""
    trace, op = case.trace, case.timeline.links.op
    found = trace.rows_named(trace.gpu.name, CONVERSION.search)
    convolves = np.append(case.ops_named(CONVOLUTION.search), True)  # -1: launched outside all ops
    return found & convolves[op]


def _own_calls(case: Analysis, rows: Mask) -> Mask:
    """Calls that launch nothing but these events."""
    call = case.timeline.links.call
    count = len(case.trace.calls)
    mine = np.bincount(call[rows & (call >= 0)], minlength=count)
    return (mine > 0) & (mine == np.bincount(call[call >= 0], minlength=count))


def _in_window(case: Analysis, names: frozenset[str]) -> int:
    """Number of ops with these names in the window."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    found = case.ops_named(names.__contains__)
    return int(np.count_nonzero(found & (ops.start_ns >= low) & (ops.start_ns < high)))


def _change(case: Analysis, rows: Mask, norms: float, level: int) -> Change:
    """The step in channels_last; `norms`: group norms per conversion, level: 0 at best, 1 as expected, 2 at worst."""
    graph = case.graph
    nodes = case.nodes_of_gpu(rows) & graph.on_gpu
    calls = case.nodes_in_calls(_own_calls(case, rows))
    copies = norms * calibrated.GROUP_NORM_COPIES.rising[level] + calibrated.OTHER_COPIES.rising[level]
    factor = np.ones(len(graph))
    for name, share in NORMS:
        factor[case.nodes_within(case.ops_named(f"aten::{name}".__eq__)) & graph.on_gpu] = share.rising[level]
    sums = case.nodes_within(case.ops_named("aten::sum".__eq__))
    sums &= case.nodes_within(case.ops_named("aten::convolution_backward".__eq__))
    factor[sums & graph.on_gpu] = calibrated.BIAS.rising[level]
    factor[nodes], factor[calls] = copies, min(copies, 1.0)
    gone = nodes | calls if not copies else np.zeros(len(graph), bool)
    return partial(_converted, gone=gone, factor=factor)


def _converted(graph: Graph, gone: Mask, factor: F64) -> Graph:
    return scaled(removed(graph, gone) if gone.any() else graph, factor != 1.0, factor)


FINDING = Declaration(
    page=PAGE,
    find=find,
    lowers=("slow_matmuls", "slow_kernels"),
    synonyms=("nhwc", "memory_format"),
)
