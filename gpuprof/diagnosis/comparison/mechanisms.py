"""What changed between two recordings, and which part of the difference each change explains.

A candidate claims the cells of the waterfall in which such a change acts. A cell's difference is divided among the
candidates that claim it, in proportion to their weights, so the explained parts and the unexplained rest sum to the
difference exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log

from gpuprof.diagnosis.comparison.comparison import ComparedWork, Mechanism, PhaseShare, Step
from gpuprof.diagnosis.comparison.leftovers import WORK, leftovers
from gpuprof.diagnosis.comparison.predictions import combined, predictions
from gpuprof.diagnosis.detect.pair.candidates import Candidate
from gpuprof.diagnosis.detect.pair.cells import allot
from gpuprof.diagnosis.detect.pair.facts import Facts
from gpuprof.diagnosis.plug_ins import declarations
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.timeline.phases import PHASES


@dataclass(frozen=True, slots=True)
class Explained:
    """Candidates with their parts of the difference, and the unexplained rest."""

    parts: tuple[tuple[Candidate, dict[str, int]], ...]
    """(candidate, phase → its ns); the largest part of the difference first, after another batch size."""
    rest_ns: int


def explain(a: Facts, b: Facts, work: ComparedWork | None, related: bool = True) -> Explained:
    """The changes between two recordings, and the part of B's step − A's step that each explains; `related`: whether
    one may be the other with a fix.

    Less of something that costs time cannot make a step longer: a change whose part of the difference has the wrong
    sign is dropped, and its cells go to the others.
    """
    # Sorted by id, so that rounding does not depend on the order in which findings are registered.
    changes = [one.change for one in declarations() if one.change is not None] if related else []
    strong = sorted((one for change in changes for one in change(a, b)), key=lambda one: one.id)
    dropped: set[str] = set()
    while True:
        strong = [one for one in strong if one.id not in dropped]
        found = [*strong, *(one for one in leftovers(a, b, work, bool(strong)) if one.id not in dropped)]
        shares, rest = _claimed(a, b, found)
        own = [sum(share.values()) for share in shares]
        contrary = [i for i, one in enumerate(found) if one.more * own[i] < 0]
        if not contrary:
            break
        dropped.add(found[max(contrary, key=lambda i: abs(own[i]))].id)
    whole = b.side.step_ns - a.side.step_ns
    sign = -1 if whole < 0 else 1
    # With a batch of eight times the size, it says little that a kernel or a wait takes longer.
    batch = work is not None and not work.equal and abs(log(work.ratio)) > abs(log(b.side.step_ns / a.side.step_ns))
    order = sorted(range(len(found)), key=lambda i: (not (batch and found[i].id in WORK), -sign * own[i], i))
    return Explained(tuple((found[i], shares[i]) for i in order if own[i]), rest)


def _claimed(a: Facts, b: Facts, found: list[Candidate]) -> tuple[list[dict[str, int]], int]:
    """(each candidate's part of the difference by phase, the part that no candidate claims)."""
    own: list[dict[str, int]] = [{} for _ in found]
    rest = 0
    for cell in dict.fromkeys([*a.cells, *b.cells]):
        difference = b.cells.get(cell, 0) - a.cells.get(cell, 0)
        claims = [(i, weight) for i, one in enumerate(found) if (weight := one.claim(cell)) > 0]
        if not claims:
            rest += difference
        for (i, _), ns in zip(claims, allot(difference, [weight for _, weight in claims]), strict=True):
            own[i][cell[2]] = own[i].get(cell[2], 0) + ns
    return own, rest


def mechanisms(
    explained: Explained,
    a: Facts,
    b: Facts,
    step: Step,
    work: ComparedWork | None,
    both: tuple[Diagnosis, Diagnosis] | None,
) -> Iterator[Mechanism]:
    """The explained parts, each with what either diagnosis in `both` predicted for such a fix; `both` None: neither is
    the other with a fix."""
    names = [one.id for one, _ in explained.parts]
    given = False
    for one, phases in explained.parts:
        ns = sum(phases.values())
        in_a, in_b = a.finding(one.id) is not None, b.finding(one.id) is not None
        foretold = list(predictions(one.id, a, b, work)) if both is not None else []
        if both is not None and not given and foretold:
            foretold += combined(both, names, a, b)
            given = True
        yield Mechanism(
            id=one.id,
            title=one.title,
            text=one.text,
            difference_ns=ns,
            share=ns / step.difference_ns if step.difference_ns else None,
            phases=tuple(PhaseShare(phase, phases[phase]) for phase in PHASES if phases.get(phase)),
            found="both" if in_a and in_b else "a" if in_a else "b" if in_b else "none",
            predictions=tuple(foretold),
        )
