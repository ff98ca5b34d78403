"""Convolutions whose inputs and outputs are converted from one memory layout to another and back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import numpy as np

from gpuprof.diagnosis.case import Case, Change
from gpuprof.diagnosis.evidence import spans
from gpuprof.diagnosis.proposal import Page, Proposal
from gpuprof.diagnosis.sentences import ms_or_us
from gpuprof.replay.transform import removed, scaled
from gpuprof.tracefile.model import Mask

CONVERSION = re.compile(r"nchwToNhwc|nhwcToNchw", re.IGNORECASE)
"""cuDNN's kernels that convert a tensor for a convolution, and its result back."""
CONVOLUTION = re.compile(r"conv(?!ert)", re.IGNORECASE)
"""Ops that convolve, forward and backward."""
CHANNELS_FIRST_OPS = frozenset({"aten::native_group_norm", "aten::native_group_norm_backward"})
"""Ops that have no kernel for channels_last on a GPU: torch copies their input to channels first, and the next
convolution converts their result again."""
COPIES_OF_EACH = 2
STAYS_AT_WORST = 0.3
"""Assumed: share of the conversions' time that comes back as copies around other ops that know channels first only
(reshapes, attention over pixels, pooling of some sizes)."""

PAGE = Page(
    id="channels_last",
    title="Convolutions convert the memory layout of their tensors",
    means="""
Tensor cores convolve tensors whose channels lie next to one another in memory (NHWC, `channels_last`). torch keeps
images with whole planes per channel (NCHW) by default, so cuDNN converts the input of every convolution, and often its
output back, with kernels of their own that read and write the whole tensor. A model and inputs in `channels_last` need
none of them; the numbers stay the same.
""",
    detected="""
Kernels named `nchwToNhwc` or `nhwcToNchw` that convolutions launch.
""",
    gain="""
The conversions and their launches are taken out. Group norms keep theirs: on a GPU torch has no `channels_last` kernel
for them, so each one costs two conversions as before (at best none). At worst another 30 % of the conversions' time
comes back as copies around other ops.
""",
    wrong="""
An op without a `channels_last` kernel copies its input, and what follows it is channels first again: look for
`aten::contiguous` and `aten::copy_` in a new recording. Depthwise convolutions and networks with few channels can be
slower in `channels_last`. Convert the inputs as well: one tensor in the other layout is enough to convert each
layer's again.
""",
)


def find(case: Case) -> Iterator[Proposal]:
    """A model and inputs in channels_last."""
    rows = _conversions(case)
    if not rows.any():
        return
    graph = case.graph
    nodes = case.nodes_of_gpu(rows) & graph.on_gpu
    pieces = nodes | case.nodes_in_calls(_own_calls(case, rows))
    count = case.per_step(int(nodes.sum()))
    stays = min(COPIES_OF_EACH * case.per_step(_channels_first_ops(case)) / max(count, 1.0), 1.0)
    took = case.per_step(float(graph.duration_ns[nodes].sum()))
    whole = case.per_step(float(graph.duration_ns[graph.on_gpu].sum()))
    text = (
        f"{count:,.0f} kernels a step convert tensors for convolutions from one memory layout to another: "
        f"{ms_or_us(took)}, {100 * took / max(whole, 1.0):,.0f} % of the GPU's time"
    )
    if stays:
        text += f"; {100 * stays:,.0f} % of them stay, for group norms"
    yield Proposal(
        title="channels_last",
        evidence=spans(case, text, nodes),
        fix="model = model.to(memory_format=torch.channels_last)\n"
        "images = images.to(memory_format=torch.channels_last)  # every batch, before the model",
        change=_left(pieces, stays),
        best=_left(pieces, 0.0),
        worst=_left(pieces, min(stays + STAYS_AT_WORST, 1.0)),
    )


def _conversions(case: Case) -> Mask:
    """GPU events that convert a layout for a convolution; where ops were not recorded, all that convert one."""
    trace, op = case.trace, case.timeline.links.op
    found = trace.rows_named(trace.gpu.name, CONVERSION.search)
    convolves = np.append(case.ops_named(CONVOLUTION.search), True)  # -1: launched outside of any op
    return found & convolves[op]


def _own_calls(case: Case, rows: Mask) -> Mask:
    """Calls that launch nothing but these events."""
    call = case.timeline.links.call
    count = len(case.trace.calls)
    mine = np.bincount(call[rows & (call >= 0)], minlength=count)
    return (mine > 0) & (mine == np.bincount(call[call >= 0], minlength=count))


def _channels_first_ops(case: Case) -> int:
    """Ops of the window that would copy their input."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    found = case.ops_named(lambda text: text in CHANNELS_FIRST_OPS)
    return int(np.count_nonzero(found & (ops.start_ns >= low) & (ops.start_ns < high)))


def _left(nodes: Mask, share: float) -> Change:
    """The change after which this share of the conversions' time is left."""
    return partial(scaled, nodes=nodes, factor=share) if share else partial(removed, nodes=nodes)
