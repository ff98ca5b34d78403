"""Gradients are computed for weights that no optimizer updates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import recompute as calibrated
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.repeated.idle_weights import WEIGHTS_SHARE, IdleWeights, idle_weights
from gpuprof.diagnosis.result.fix import call, code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.transform import scaled
from gpuprof.timeline.phases import BACKWARD
from gpuprof.tracefile.trace import F64, Mask
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_IDLE_SHARE: Assumed[Share] = 0.2
"""Smallest share of the parameters with gradients for a proposal: a pooler that no loss uses has less."""
_WHAT = "gradients of weights that no optimizer has"
_TITLE = "no gradients for weights that are not trained"

PAGE = Page(
    id="idle_gradients",
    title="Gradients of weights that nothing updates",
    applies=("training",),
    means="""
A new head or an adapter is trained, only its parameters are given to the optimizer, and the rest of the model still has
`requires_grad=True`. Or a second network, in no optimizer, is part of the loss: a perceptual loss, a reward or distance
by a pretrained model. `eval()` does not freeze it. Then autograd computes the gradients of all weights in each step,
and keeps all activations for them, although nothing reads the result. Below the first trained layer the whole backward
pass is wasted, and so is one that ends in a layer whose input needs no gradient, such as that of the loss's target.
""",
    detected="""
The recorder compares the model's parameters with those of all optimizers that have stepped: those with a gradient
that are in none of them must be at least a fifth of all with one. Not detected for sharded or flattened weights,
whose optimizers hold other tensors.

The trace shows it, too, and for models that are not the trained one: where each step clears gradients with
`set_to_none=True`, and the number of new ones in a step is that of its only optimizer's tensors, all others are added
to gradients of earlier steps, which nothing clears. Half of them must come before the new ones or have other shapes, or
the recorder must have counted this number: else they may be added to gradients of the same step. An op computes such a
gradient if the next weight of its shape that gets a gradient is one of them.
""",
    gain=f"""
The share of the backward pass for layers below the first trained one is removed (by parameters, in the model's order),
and so are weight gradients in the layers above: half of the time of a matrix multiplication's backward pass. At best
{calibrated.IDLE_PART.high:g} times that, at worst {calibrated.IDLE_PART.low:g} times (assumed). Where the trace shows
the ops, they are removed: the sum into each of these gradients, the matrix multiplication that computes it, the kernels
of a convolution's backward pass that follow those for its input (half of it where their names do not say), and all of
the backward pass between the first of these weights and a layer that computes no gradient of its input. At worst the
latter stays, unless the next gradient after it has a size that does not occur in it: a trained layer may have another
way into it. Memory for gradients and activations is freed, which is not counted.
""",
    wrong=f"""
Gradients that the program reads itself (saliency, a penalty on them, an optimizer of its own that has no `step()` of
`torch.optim`) are needed. The recorder lists the modules whose weights are in no optimizer of the process, whether it
has stepped or not. Without that list, an optimizer that steps once in many steps may have them: the probability is
{calibrated.UNCLEARED_ODDS.value:g} (assumed), and {calibrated.UNUSED_ODDS.value:g} if the list has another number of
weights.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes not to compute gradients of weights that are not trained."""
    traced = idle_weights(case)
    if traced is not None:
        if not traced.below_nothing:
            yield _of_ops(case, traced)
        return
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
        title=_TITLE,
        evidence=spans(case, text, gpu if gpu.any() else nodes),
        fix=call("model.requires_grad_", False)
        + "  # before the optimizer is made; then\n"
        + code("for p in trained_parameters: p.requires_grad_(True)"),
        change=usual,
        best=best,
        worst=worst,
    )


def _of_ops(case: Analysis, found: IdleWeights) -> Proposal:
    """The proposal where the trace shows which ops compute these gradients."""
    graph = case.graph
    gone, halved = found.gone & graph.on_gpu, found.halved & graph.on_gpu
    ns, names = found.gpu_ns(case), found.names
    text = (
        f"backward passes compute gradients of {found.tensors:,} weights ({found.elements / 1e6:,.1f} M parameters)"
        f"{f' of {names}' if names else ''} that the optimizer does not have: {duration(ns)} of GPU time"
        f" {case.unit.a}"
    )
    return Proposal(
        title=_TITLE,
        evidence=spans(case, text, gone | halved),
        fix=call("network.requires_grad_", False)
        + f"  # {names or 'the part of the loss'} that is not trained\n"
        + code("with torch.no_grad():")
        + "  # around its calls whose inputs need no gradients, as the target's",
        change=found.without,
        worst=found.without_the_least,
        odds=found.odds,
        item=(_WHAT, f"the weights {f'of {names} ' if names else ''}have requires_grad"),
        needs=found.needs,
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
    ledger=LedgerItem(_WHAT, "the weights have requires_grad", "discarded"),
    synonyms=("freeze", "frozen_weights", "trainable_parameters", "loss_network"),
    titles=("no_gradients_for_weights_that_are_not_trained",),
)
