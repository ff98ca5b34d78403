"""Two fixes, neither of which gains alone: the GPU and the CPU, or the CPU and the workers, both limit a step, so that
relieving one of them leaves the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.proposal import LEAST_GAIN, Proposal
from gpuprof.diagnosis.fixes.predicted_step import PredictedSteps, in_order
from gpuprof.diagnosis.result.fix import Fix, joined
from gpuprof.units import Assumed, Convention, Entries, Share

LEAST_TAKEN: Assumed[Share] = 0.05
"""Smallest share of the step that each of the two removes from the GPU's or the CPU's work."""
BALANCED_ODDS: Assumed[Share] = 0.85
"""Probability that the two limits are as close to each other as in the replayed step."""
MOST_TRIED: Convention[Entries] = 3
"""Most fixes of either side that are tried together, those that remove most."""

Named = tuple[str, Proposal]


def best_pair(steps: PredictedSteps, ruled_out: Sequence[Named]) -> tuple[Named, Named] | None:
    """The two fixes, one that relieves the GPU and one that relieves the CPU, that shorten the step most together; None
    if no two gain enough. Larger batches do not count."""
    case = steps.case
    found = [(one, *_taken(case, one[1])) for one in ruled_out if one[1].work == 1 and not one[1].parts]
    gpu = _largest([(one, on_gpu) for one, on_gpu, _ in found])
    cpu = _largest([(one, on_cpu) for one, _, on_cpu in found])
    tried = [
        (_step(steps, a[1], b[1]), a, b)
        for a in gpu
        for b in cpu
        if a[0] != b[0] and not {*a[1].claims} & {*b[1].claims}
    ]
    if not tried:
        return None
    step, a, b = min(tried, key=lambda one: one[0])
    return (a, b) if case.mean_ns >= LEAST_GAIN * step else None


def as_one(a: Proposal, b: Proposal) -> Proposal:
    """Both as one fix, which the user applies by hand."""
    low, usual, high = (one + other for one, other in zip(a.once_ns, b.once_ns, strict=True))
    return replace(
        a,
        title=f"{a.title}, and {b.title}",
        evidence=(*a.evidence, *b.evidence),
        fix=replace(joined([*_both(a, b)]), patch=None),
        changes="; ".join(filter(None, (a.changes, b.changes))),
        once_ns=(low, usual, high),
        needs="; ".join(filter(None, ("both: either alone leaves the other limit", a.needs, b.needs))),
        odds=BALANCED_ODDS * a.odds * b.odds,
        claims=(*a.claims, *b.claims),
        parts=(a.title, b.title),
    )


def _both(a: Proposal, b: Proposal) -> Iterator[Fix | str]:
    yield a.fix
    yield "and"
    yield b.fix


def _step(steps: PredictedSteps, a: Proposal, b: Proposal) -> float:
    """The step after both, ns."""
    ordered = in_order([a, b])
    return steps.begin(steps.case.graph, [one.change for one in ordered], ordered)()


def _largest(found: Sequence[tuple[Named, float]]) -> list[Named]:
    most = sorted((one for one in found if one[1] >= LEAST_TAKEN), key=lambda one: -one[1])
    return [one for one, _ in most[:MOST_TRIED]]


def _taken(case: Analysis, proposal: Proposal) -> tuple[float, float]:
    """Shares of the step that a fix takes off the GPU's and the CPU's work."""
    now, then = case.graph, proposal.change(case.graph)
    if len(now) != len(then):
        return 0.0, 0.0
    saved, gpu = now.duration_ns - then.duration_ns, now.on_gpu
    whole = max(case.step_ns * now.steps, 1.0)
    on_gpu, on_cpu = (float(np.where(side & ~now.waits, saved, 0.0).sum()) / whole for side in (gpu, ~gpu))
    return on_gpu, on_cpu
