"""Gradients are filled with zeros before each step, one kernel after another, where they could be dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.pair.candidates import OWN_WEIGHT, Candidate, claim_where
from gpuprof.diagnosis.detect.pair.facts import Facts
from gpuprof.diagnosis.result.fix import call
from gpuprof.replay.transform import removed

RANGE = re.compile(r"^Optimizer\.zero_grad#")
"""torch's own range around `zero_grad`."""
FILLS = re.compile(r"^aten::(zero_|_foreach_zero_|fill_)$")

PAGE = Page(
    id="zeroed_gradients",
    applies=("training",),
    title="Gradients are filled with zeros",
    means="""
`optimizer.zero_grad(set_to_none=False)` launches kernels that write zeros into every gradient. Dropping the gradients
instead launches nothing, and the backward pass writes the first gradient rather than adding to zeros.
""",
    detected="""
Ops in torch's range `Optimizer.zero_grad` that fill tensors on the GPU.
""",
    gain="""
These ops and their kernels are removed from the graph.
""",
    wrong="""
A parameter without a gradient is skipped by the optimizer, while one with a zero gradient still decays.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """The step without these fills, where there are some."""
    inside = case.ops_within(case.ops_named(RANGE.match)) & case.ops_named(FILLS.match)
    nodes = case.nodes_within(inside)
    fills = int((nodes & case.graph.on_gpu).sum())
    if not fills:
        return
    yield Proposal(
        title="gradients dropped instead of zeroed",
        evidence=spans(case, f"zero_grad launches {case.per_step(fills):,.0f} kernels a step", nodes),
        fix=call("optimizer.zero_grad", set_to_none=True).by(PAGE.id),
        change=partial(removed, nodes=nodes),
    )


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Fewer elementwise kernels in the optimizer's phase, where only one side has the finding."""
    in_a, in_b = (side.finding(PAGE.id) is not None for side in (a, b))
    if in_a != in_b:
        claim = claim_where(
            lambda cell: cell[1:] in (("elementwise", "optimizer"), ("memset", "optimizer")), OWN_WEIGHT
        )
        yield Candidate(PAGE.id, "gradients dropped", "one of the two fills its gradients with zeros", claim)


FINDING = Declaration(
    page=PAGE,
    find=find,
    change=change,
    synonyms=("zero_grad", "set_to_none"),
    titles=("gradients_dropped_instead_of_zeroed",),
    patch=Path(__file__).with_name("patch.py"),
)
