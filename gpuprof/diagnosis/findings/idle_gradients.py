"""Gradients are computed for weights that no optimizer updates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import recompute as calibrated
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import call, code
from gpuprof.replay.transform import scaled
from gpuprof.timeline.phases import BACKWARD
from gpuprof.tracefile.trace import F64, Mask
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_IDLE_SHARE: Assumed[Share] = 0.2
"""Smallest share of the parameters with gradients for a proposal: a pooler that no loss uses has less."""
WEIGHTS_SHARE: Assumed[Share] = 0.5
"""Share of the backward pass's time that gradients of weights take in layers of matrix multiplications; the other half
are gradients of their inputs."""

PAGE = Page(
    id="idle_gradients",
    title="Gradients of weights that nothing updates",
    applies=("training",),
    means="""
A new head or an adapter is trained, only its parameters are given to the optimizer, and the rest of the model still has
`requires_grad=True`. Then autograd computes the gradients of all weights in each step, and keeps all activations for
them, although nothing reads the result. Below the first trained layer the whole backward pass is wasted.
""",
    detected="""
The recorder compares the model's parameters with those of all optimizers that have stepped: those with a gradient
that are in none of them must be at least a fifth of all with one. Not detected for sharded or flattened weights,
whose optimizers hold other tensors.
""",
    gain=f"""
The share of the backward pass for layers below the first trained one is removed (by parameters, in the model's order),
and so are weight gradients in the layers above: half of the time of a matrix multiplication's backward pass. At best
{calibrated.IDLE_PART.high:g} times that, at worst {calibrated.IDLE_PART.low:g} times (assumed). Memory for gradients
and activations is freed, which is not counted.
""",
    wrong="""
Gradients that the program reads itself (saliency, a penalty on them, an optimizer of its own that has no `step()` of
`torch.optim`) are needed.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes not to compute gradients of weights that are not trained."""
    optimizer = (case.run.optimizer or {}) if case.run else {}
    idle, below, used = (float(optimizer.get(name) or 0) for name in ("idle_gradients", "idle_below", "parameters"))
    whole = idle + used
    if not idle or idle < LEAST_IDLE_SHARE * whole:
        return
    graph = case.graph
    nodes = backward_nodes(case)
    if not nodes.any():
        return
    gone = below / whole + WEIGHTS_SHARE * (idle - below) / whole
    text = (
        f"{idle / 1e6:,.1f} M parameters have gradients that no optimizer uses, of {whole / 1e6:,.1f} M; "
        f"{100 * below / idle:.0f} % of them lie below all that is trained"
    )
    best, usual, worst = (
        partial(scaled, nodes=nodes, factor=_left(nodes, gone * part)) for part in calibrated.IDLE_PART.falling
    )
    gpu = nodes & graph.on_gpu
    yield Proposal(
        title="no gradients for weights that are not trained",
        evidence=spans(case, text, gpu if gpu.any() else nodes),
        fix=call("model.requires_grad_", False)
        + "  # before the optimizer is made; then\n"
        + code("for p in trained_parameters: p.requires_grad_(True)"),
        change=usual,
        best=best,
        worst=worst,
    )


def backward_nodes(case: Analysis) -> Mask:
    """The backward pass's work on GPU and CPU."""
    graph = case.graph
    return (graph.phase == BACKWARD) & ~graph.waits


def _left(nodes: Mask, gone: float) -> F64:
    return np.where(nodes, max(1.0 - gone, 0.0), 1.0)


FINDING = Declaration(
    page=PAGE,
    find=find,
    synonyms=("freeze", "frozen_weights", "trainable_parameters"),
    titles=("no_gradients_for_weights_that_are_not_trained",),
)
