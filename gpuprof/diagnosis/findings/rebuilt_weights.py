"""An adapter is added to a whole weight in each forward pass, instead of being applied to the activations; or a weight
is computed again from the same parameters at each use."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import reference as calibrated
from gpuprof.calibration.quoted import ms, percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerParts
from gpuprof.diagnosis.detect.declared.ledger_part import LedgerPart, part_of
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.detect.repeated.rebuilt_weights import Rebuilt, rebuilt_weights
from gpuprof.diagnosis.detect.repeated.repeated_weights import Again, repeated_weights
from gpuprof.diagnosis.result.fix import as_fix, code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import nodes_in
from gpuprof.replay.transform import Removing, removed, scaled
from gpuprof.timeline.phases import FORWARD
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Convention, Ops, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

ONCE = "weights computed once per forward pass"
PLAIN = "layers without a parametrization"
AGAIN_LEFT: Assumed[tuple[Share, Share, Share]] = (0.0, 0.05, 0.2)
"""Share of the repeated computations' CPU time that remains, for looking up a kept weight: at best, as expected, at
worst."""
LEAST_AGAIN_SHARE: Assumed[Share] = 0.03
"""Smallest share of the step in repeated computations for a proposal."""
MOST_NAMED: Convention[Ops] = 4
"""Most ops of a computation that are named."""
TITLE = "adapters applied to activations instead of rebuilt weights"
REBUILDING_PASSES: Assumed[Ratio] = 3.0
"""The whole weight is read and written three times where an op multiplies the factors and adds them in one go; scaling,
adding and copying are that many passes each."""

PAGE = Page(
    id="rebuilt_weights",
    applies=("training",),
    title="Whole weights are rebuilt from small factors in each forward pass",
    means="""
An adapter has two small factors. Some implementations multiply them and add the result, as large as the weight, to the
weight in each forward pass (adapters of all experts of an MoE, parametrisations, DoRA's norms), and scale the whole
gradient in the backward pass. That is memory traffic of the size of the weights, however few tokens come.

A parametrization (`torch.nn.utils.parametrizations.spectral_norm`, `weight_norm`, a class of one's own) computes its
weight at each access: a layer that a forward pass calls many times computes it as many times, a dozen small kernels and
their backward pass each, from parameters that have not changed.
""",
    detected=f"""
Forward ops that multiply two matrices over an inner dimension of at most a quarter of the result's, with a result of a
million elements or more that has the shape of what activations are multiplied with. Needs recorded shapes.

Weights computed again: just before a layer, ops whose tensors have no size but those of the layer's weight, more often
in a forward pass than there are parameters with gradients (autograd's `AccumulateGrad`; half of them where all of these
layers have a bias), if they take at least {percent(LEAST_AGAIN_SHARE)} % of the step.
""",
    gain=f"""
On the GPU, the matmuls and the ops on their whole result are removed; at worst only those that scale and copy it (one
op that multiplies and adds stays). The CPU needs {ms(calibrated.REBUILT_CPU_NS.value)} ms more for each weight
({ms(calibrated.REBUILT_CPU_NS.low)} to {ms(calibrated.REBUILT_CPU_NS.high)}): a launch-bound step of an MoE with 12
such weights became 9 % longer with the published fix.

Weights computed again: all computations but the first of each weight, forward and backward, are removed;
{percent(AGAIN_LEFT[1])} % of their CPU time stays ({percent(AGAIN_LEFT[0])} to {percent(AGAIN_LEFT[2])} %, assumed).
The fix is listed under *Worth trying* (probability {calibrated.AGAIN_ODDS.value:g}, assumed). Layers without a
parametrization compute none of these weights; that changes the training (probability
{calibrated.PLAIN_ODDS.value:g} that it stays stable, assumed).
""",
    wrong="""
With very many tokens for each weight, applying factors to activations costs more than rebuilding the weight. A
host-bound step gains nothing. A spectral norm that is kept takes one power iteration per forward pass instead of one
per use.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to apply factors to activations, and to compute weights once per forward pass."""
    yield from _again(case)
    found = rebuilt_weights(case)
    if found is None:
        return
    low, likely, high = calibrated.REBUILT_CPU_NS.rising
    yield Proposal(
        title=TITLE,
        evidence=spans(case, _said(case, found), found.built),
        fix=as_fix("apply the factors to the activations (x @ A @ B), or add them in one op (torch.baddbmm)"),
        change=_change(case, found, 1.0 / REBUILDING_PASSES, likely),
        best=_change(case, found, 0.0, low),
        worst=_change(case, found, None, high),
    )


def _again(case: Analysis) -> Iterator[Proposal]:
    """Proposes to keep parametrized weights for the forward pass, or to drop their norms."""
    found = repeated_weights(case)
    if found is None:
        return
    graph, nodes = case.graph, _nodes_again(case, found)
    gpu, cpu = nodes & graph.on_gpu, nodes & ~graph.on_gpu & ~graph.waits
    took = case.per_step(float(graph.duration_ns[cpu].sum()))
    if max(took, case.per_step(float(graph.duration_ns[gpu].sum()))) < LEAST_AGAIN_SHARE * case.step_ns:
        return
    yield Proposal(
        title=ONCE,
        evidence=spans(case, _said_again(case, found, gpu, took), nodes & ~graph.waits),
        fix=code("with torch.nn.utils.parametrize.cached():\n    outputs = model(**batch)")
        + "  # each weight is computed once\n# other code: compute the weight before the loop, and pass it to each use",
        change=partial(_kept, nodes=nodes, left=AGAIN_LEFT[1]),
        best=partial(_kept, nodes=nodes, left=AGAIN_LEFT[0]),
        worst=partial(_kept, nodes=nodes, left=AGAIN_LEFT[2]),
        odds=calibrated.AGAIN_ODDS.value,
        needs="no weight is changed between its uses; a spectral norm then takes one power iteration per forward pass",
        key="again",
    )
    every = np.logical_or.reduce([nodes_in(graph, one) >= 0 for one in found.every])
    yield Proposal(
        title=PLAIN,
        evidence=spans(case, _said_again(case, found, gpu, took), every & ~graph.waits),
        fix=code('torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")')
        + "  # or plain layers from the start",
        change=Removing(every & ~graph.waits),
        changes="weights are no longer normed",
        odds=calibrated.PLAIN_ODDS.value,
        needs="the training stays stable without norms of its weights",
        key="plain",
    )


def _kept(graph: Graph, nodes: Mask, left: Share) -> Graph:
    """The graph without these nodes' GPU work, and with a share of their CPU time."""
    return scaled(removed(graph, nodes & graph.on_gpu), nodes & ~graph.on_gpu, left)


def _nodes_again(case: Analysis, found: Again) -> Mask:
    return (nodes_in(case.graph, found.stretches) >= 0) | (nodes_in(case.graph, found.backward) >= 0)


def _said_again(case: Analysis, found: Again, gpu: Mask, took_ns: float) -> str:
    names = list(dict.fromkeys(name.removeprefix("aten::") for name in found.ops))
    few = ", ".join(names[:MOST_NAMED]) + (" …" if len(names) > MOST_NAMED else "")
    return (
        f"weights ({' × '.join(map(str, found.shape))}) are computed {found.per_step:,.0f} times {case.unit.a}"
        f" by {few}, for {found.parameters:,.0f} layers at most: {case.per_step(float(gpu.sum())):,.0f} kernels and"
        f" {duration(took_ns)} of CPU time more than once, the backward pass included"
    )


def ledger_parts(case: Analysis) -> Iterator[LedgerPart]:
    """Weights that are computed again within a forward pass."""
    for proposal in case.proposals(find):
        if proposal.key != "again":
            continue
        yield part_of(
            case.graph,
            proposal.change,
            "weights that are computed again at each use",
            "their parameters are the same as at the first use in the step",
        )


def _said(case: Analysis, found: Rebuilt) -> str:
    ns = case.per_step(float(case.graph.duration_ns[found.built].sum()))
    shapes = ", ".join(" × ".join(map(str, shape)) for shape in found.shapes[:2])
    return (
        f"{found.per_step:,.0f} weights ({shapes}) are rebuilt in each forward pass: {duration(ns)} of GPU time a step"
    )


def _change(case: Analysis, found: Rebuilt, left: float | None, cpu_ns: float) -> Change:
    """The graph with factors applied to activations. `left`: share of the ops on the whole result that remains, without
    the matmuls; None: the matmuls stay, and a third of the rest. `cpu_ns`: additional CPU time for each weight."""
    forward = (case.graph.lane >= 0) & ~case.graph.waits & (case.graph.phase == FORWARD)
    more = 1.0 + found.per_step * case.steps * cpu_ns / max(float(case.graph.duration_ns[forward].sum()), 1.0)
    matmuls = found.built & ~found.added

    def change(graph: Graph) -> Graph:
        factor = np.ones(len(graph))
        factor[found.added] = 1.0 / REBUILDING_PASSES if left is None else left
        if left is not None:
            factor[matmuls] = 0.0
        factor[forward] *= more
        return scaled(graph, found.built | forward, factor)

    return change


def why_not(case: Analysis) -> str | None:
    """Why it is not advised: what it would save is little, or hidden behind the CPU."""
    found = rebuilt_weights(case)
    if found is None:
        return None
    return f"{_said(case, found)}, which applying the factors to activations would not shorten by more than noise"


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerParts(ledger_parts, stage="replaced", unadvised=False),
    absent=Absent(TITLE, why_not),
    synonyms=(
        "weight_delta",
        "get_delta_weight",
        "target_parameters",
        "parametrization",
        "spectral_norm",
        "weight_norm",
    ),
    titles=("weights_computed_once_per_forward_pass", "layers_without_a_parametrization"),
)
