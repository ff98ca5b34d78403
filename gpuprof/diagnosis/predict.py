"""From proposals to findings: each fix is made in the graph, the step replayed, and what does not gain is left out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gpuprof.diagnosis.case import Case, Change
from gpuprof.diagnosis.findings import FINDINGS
from gpuprof.diagnosis.model import Combined, Finding, Range, Remaining
from gpuprof.diagnosis.proposal import MARKED, NOISE, SEVERE, WORTH, Proposal
from gpuprof.replay.graph import Graph
from gpuprof.replay.overhead import ROUNDS
from gpuprof.replay.simulate import simulate

MOST_COMBINED = 4


@dataclass(frozen=True, slots=True)
class _Predicted:
    id: str
    proposal: Proposal
    step: Range

    @property
    def speedup(self) -> float:
        return self.proposal.work / self.step.expected


def findings_and_best(case: Case) -> tuple[tuple[Finding, ...], Combined | None]:
    """All fixes that are expected to gain, and what the best of them do together.

    Most first; those that change the batch, and so the training itself, after those that do not.
    """
    predicted = _predicted(case)
    return tuple(_finding(case, p) for p in predicted), _combined(case, predicted)


def _predicted(case: Case) -> list[_Predicted]:
    found = []
    for page, find in FINDINGS:
        for proposal in find(case):
            step = predict(case, proposal)
            if proposal.work * case.step_ns / step.expected >= WORTH:
                found.append(_Predicted(page.id, proposal, step))
    # What does the same work in less time stands before what changes the training's own numbers.
    return sorted(found, key=lambda p: (p.proposal.work != 1.0, -p.speedup))


def predict(case: Case, proposal: Proposal) -> Range:
    """The step after a fix with its 80 % interval, ns.

    Independent sources of uncertainty add up as squares of logarithms: how well the fix works (its best and worst
    case), what the profiler cost, and the noise between processes.
    """

    def step(change: Change, graph: Graph) -> float:
        return max(simulate(change(graph), ROUNDS).step_ns, proposal.least_ns, 1.0)

    graph, removal = case.graph, case.removal
    expected = step(proposal.change, graph)
    best = min(step(proposal.best, graph), expected) if proposal.best else expected
    worst = max(step(proposal.worst, graph), expected) if proposal.worst else expected
    quicker = min(step(proposal.change, removal.quicker), expected)
    slower = max(step(proposal.change, removal.slower), expected)
    always = (math.log(proposal.spread), math.log1p(NOISE))
    low = _away(math.log(expected / best), math.log(expected / quicker), *always)
    high = _away(math.log(worst / expected), math.log(slower / expected), *always)
    return Range(round(expected * math.exp(-low)), round(expected), round(expected * math.exp(high)))


def _away(*parts: float) -> float:
    return math.sqrt(sum(part * part for part in parts))


def _finding(case: Case, one: _Predicted) -> Finding:
    proposal, step, now = one.proposal, one.step, case.step_ns
    gain = proposal.work * now
    # The unfixed step is the same machine's: of the interval only what the fix itself leaves open counts.
    speedup = tuple(max(gain / ns, 0.0) for ns in (step.high, step.expected, step.low))
    return Finding(
        id=one.id,
        title=proposal.title,
        severity="high" if speedup[1] >= SEVERE else "medium" if speedup[1] >= MARKED else "low",
        evidence=proposal.evidence,
        fix=proposal.fix,
        step_ns=step,
        speedup=Range(*speedup),
        work=proposal.work,
        remaining_ns=_remaining(case, step, proposal.work),
    )


def _remaining(case: Case, step: Range, work: float) -> Remaining | None:
    left = case.run.remaining_ns if case.run else None
    if not left:
        return None
    factors = [ns / (case.step_ns * work) for ns in (step.low, step.expected, step.high)]
    return Remaining(left, *(round(left * factor) for factor in factors))


def _combined(case: Case, predicted: Iterable[_Predicted]) -> Combined | None:
    """Adds fix after fix, the one that gains most on top of those before it, while it still gains."""
    chosen: list[_Predicted] = []
    graph, work, least, now = case.graph, 1.0, 0.0, case.step_ns
    left = list(predicted)
    while left and len(chosen) < MOST_COMBINED:
        taken = {p.id for p in chosen}
        shut = {name for p in chosen for name in p.proposal.excludes}
        left = [p for p in left if p.id not in taken | shut and not taken & set(p.proposal.excludes)]
        trials = []
        for p in left:
            step = max(simulate(p.proposal.change(graph), ROUNDS).step_ns, p.proposal.least_ns, least, 1.0)
            trials.append((p.proposal.work * now / step, step, p))
        if not trials:
            break
        gain, step, best = max(trials, key=lambda t: t[0])
        if gain < WORTH:
            break
        chosen.append(best)
        graph, least, now = best.proposal.change(graph), max(least, best.proposal.least_ns), step
        work *= best.proposal.work
    if len(chosen) < 2:
        return None
    low = math.prod(p.step.low / p.step.expected for p in chosen[:2])
    high = math.prod(p.step.high / p.step.expected for p in chosen[:2])
    step_range = Range(round(now * low), round(now), round(now * high))
    gained = work * case.step_ns
    return Combined(
        ids=tuple(p.id for p in chosen),
        titles=tuple(p.proposal.title for p in chosen),
        step_ns=step_range,
        speedup=Range(gained / step_range.high, gained / step_range.expected, gained / step_range.low),
        work=work,
        remaining_ns=_remaining(case, step_range, work),
    )
