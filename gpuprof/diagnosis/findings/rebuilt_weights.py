"""An adapter is added to a whole weight in each forward pass, instead of being applied to the activations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import reference as calibrated
from gpuprof.diagnosis.detect.declaration import Declaration
from gpuprof.diagnosis.detect.evidence import spans
from gpuprof.diagnosis.detect.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.detect.rebuilt_weights import Rebuilt, rebuilt_weights
from gpuprof.diagnosis.fix import as_fix
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import scaled
from gpuprof.timeline.phases import FORWARD
from gpuprof.units import Assumed, Ratio

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

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
""",
    detected="""
Forward ops that multiply two matrices over an inner dimension of at most a quarter of the result's, with a result of a
million elements or more that has the shape of what activations are multiplied with. Needs recorded shapes.
""",
    gain="""
On the GPU, the matmuls and the ops on their whole result are removed; at worst only those that scale and copy it (one
op that multiplies and adds stays). The CPU needs 0.2 ms more for each weight (0 to 0.4): a launch-bound step of an
MoE with 12 such weights became 9 % longer with the published fix.
""",
    wrong="""
With very many tokens for each weight, applying factors to activations costs more than rebuilding the weight. A
host-bound step gains nothing.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Factors that are applied to activations."""
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


def _said(case: Analysis, found: Rebuilt) -> str:
    ns = case.per_step(float(case.graph.duration_ns[found.built].sum()))
    shapes = ", ".join(" × ".join(map(str, shape)) for shape in found.shapes[:2])
    return (
        f"{found.per_step:,.0f} weights ({shapes}) are rebuilt in each forward pass: {duration(ns)} of GPU time a step"
    )


def _change(case: Analysis, found: Rebuilt, left: float | None, cpu_ns: float) -> Change:
    """`left`: of what is done with the whole result, with the matmuls gone; None: the matmuls stay, and of the rest a
    third. `cpu_ns`: what the CPU needs more for each weight."""
    forward = (case.graph.lane >= 0) & ~case.graph.waits & (case.graph.phase == FORWARD)
    more = 1.0 + found.per_step * case.steps * cpu_ns / max(float(case.graph.duration_ns[forward].sum()), 1.0)
    products = found.built & ~found.added

    def change(graph: Graph) -> Graph:
        factor = np.ones(len(graph))
        factor[found.added] = 1.0 / REBUILDING_PASSES if left is None else left
        if left is not None:
            factor[products] = 0.0
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
    absent=Absent(TITLE, why_not),
    synonyms=("weight_delta", "get_delta_weight", "target_parameters", "dora", "parametrization"),
)
