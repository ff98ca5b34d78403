"""Fixes that are worth it together only. Two, neither of which gains alone: the GPU and the CPU, or the CPU and the
workers, both limit a step, so that relieving one of them leaves the other. Several that gain a little each. And one
that gains only once another is made, because the other removes what hid it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.proposal import LEAST_GAIN, MARKED_GAIN, Proposal
from gpuprof.diagnosis.fixes.predicted_step import PredictedSteps, in_order
from gpuprof.diagnosis.result.fix import joined
from gpuprof.units import Assumed, Convention, Entries, Ratio, Share
from gpuprof.value_range import Range

LEAST_TAKEN: Assumed[Share] = 0.05
"""Smallest share of the step that each of the two removes from the GPU's or the CPU's work."""
BALANCED_ODDS: Assumed[Share] = 0.85
"""Probability that the two limits are as close to each other as in the replayed step."""
MOST_TRIED: Convention[Entries] = 3
"""Most fixes of either side that are tried together, those that remove most."""

LEAST_SMALL_GAIN: Assumed[Ratio] = 1.01
"""Smallest gain of a fix that is combined with others that gain little: with less, replays differ by as much."""
SMALL_ODDS: Assumed[Share] = 0.85
"""Probability that several such fixes gain together: the prediction of each may be wrong by as much as it gains."""
MOST_SMALL: Convention[Entries] = 3
"""Most such fixes in one entry, those that gain most."""

MOST_FIRST: Convention[Entries] = 3
"""Most fixes that gain alone, the first of the list, after which those that do not are tried."""

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


def small_ones(ruled_out: Sequence[tuple[Named, Range]]) -> list[Named]:
    """Fixes that gain little each, and enough together if these gains multiply; the largest first, empty if they are
    too small. Only those that need nothing unseen and cost nothing once."""
    found: list[tuple[Named, float]] = []
    for (name, one), gain in sorted(ruled_out, key=lambda each: -each[1].expected):
        claimed = {claim for (_, other), _ in found for claim in other.claims}
        others = {other for (other, _), _ in found}
        if _plain(one) and gain.expected >= LEAST_SMALL_GAIN and name not in others and claimed.isdisjoint(one.claims):
            found.append(((name, one), gain.expected))
    found = found[:MOST_SMALL]
    enough = math.prod(gain for _, gain in found) >= LEAST_GAIN
    return [one for one, _ in found] if len(found) > 1 and enough else []


def gains_after(
    steps: PredictedSteps, first: Sequence[Named], ruled_out: Sequence[Named]
) -> tuple[Named, Named] | None:
    """A fix that gains alone (one of `first`, of which the first few are tried), and the one that gains most once that
    is made: the GPU was busy while the CPU did what it takes off, or the other way round. None if no such fix makes
    a marked difference then. Only those that need nothing unseen and cost nothing once."""
    case, found = steps.case, list[tuple[float, Named, Named]]()
    later = [(one, sum(_taken(case, one[1]))) for one in ruled_out if _plain(one[1])]
    for before in [one for one in first if one[1].work == 1 and not one[1].parts][:MOST_FIRST]:
        alone = steps.begin(case.graph, [before[1].change], [before[1]])()
        for one, taken in later:
            enough = taken * case.step_ns >= (1 - 1 / MARKED_GAIN) * alone
            if enough and one[0] != before[0] and {*one[1].claims}.isdisjoint(before[1].claims):
                found.append((alone / _step(steps, before[1], one[1]), before, one))
    gain, before, one = max(found, key=lambda each: each[0], default=(0.0, None, None))
    return (before, one) if before is not None and one is not None and gain >= MARKED_GAIN else None


def _plain(one: Proposal) -> bool:
    """Whether a fix is single, of the same work, needs nothing unseen and costs nothing once."""
    return one.work == 1 and not (one.parts or one.needs) and one.odds >= 1 and not one.once_ns[1]


def as_one(fixes: Sequence[Proposal], needs: str = "", odds: Share = 1.0) -> Proposal:
    """Several as one fix, which the user applies by hand; `needs`, `odds`: what they need together, and how likely that
    holds."""
    low, usual, high = (sum(each) for each in zip(*(one.once_ns for one in fixes), strict=True))
    return replace(
        fixes[0],
        title=", and ".join(one.title for one in fixes),
        evidence=tuple(each for one in fixes for each in one.evidence),
        fix=replace(joined([one.fix for one in fixes], between="\nand\n"), patch=None),
        changes="; ".join(one.changes for one in fixes if one.changes),
        once_ns=(low, usual, high),
        needs="; ".join(filter(None, (needs, *(one.needs for one in fixes)))),
        odds=odds * math.prod(one.odds for one in fixes),
        claims=tuple(claim for one in fixes for claim in one.claims),
        parts=tuple(one.title for one in fixes),
    )


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
