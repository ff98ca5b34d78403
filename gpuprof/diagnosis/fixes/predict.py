"""From proposals to findings: apply each fix to the graph, replay the step, and drop fixes that do not gain."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.proposal import (
    CERTAIN_CHANCE,
    LEAST_CHANCE,
    LEAST_GAIN,
    MARKED_GAIN,
    SEVERE_GAIN,
    SURE_GAIN,
    Proposal,
)
from gpuprof.diagnosis.findings import ABSENT, FINDINGS
from gpuprof.diagnosis.fixes.acts_on import acts_on
from gpuprof.diagnosis.fixes.alternatives import leaders_first
from gpuprof.diagnosis.fixes.chance import measured_odds, probability, time_left, with_odds
from gpuprof.diagnosis.fixes.predicted_step import PredictedSteps, Prediction, in_order, prediction
from gpuprof.diagnosis.fixes.small_change import small_change
from gpuprof.diagnosis.fixes.together import BALANCED_ODDS, SMALL_ODDS, as_one, best_pair, gains_after, small_ones
from gpuprof.diagnosis.plug_ins import plug_ins
from gpuprof.diagnosis.result.finding_model import Combined, Considered, Finding, Remaining
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.bound import Bound
from gpuprof.replay.graph import Graph
from gpuprof.units import Assumed, Entries, Share
from gpuprof.value_range import Range

MOST_COMBINED: Assumed[Entries] = 4
OVERLAP: Assumed[Share] = 0.5
"""A fix takes off mostly the time of another one if, once that one is made, it gains less than LEAST_GAIN and keeps
less than this share of its gain, as a logarithm."""
_LISTS: tuple[Literal["fixes", "worth_trying"], ...] = ("fixes", "worth_trying")


@dataclass(frozen=True, slots=True)
class _Predicted:
    id: str
    proposal: Proposal
    prediction: Prediction
    named: bool = False
    """Whether the verdict names the problem that it removes."""

    @property
    def odds(self) -> float:
        """Probability that it works at all, corrected by how often such fixes did, 0 to 1."""
        return measured_odds(self.proposal.odds)

    @property
    def probability(self) -> float:
        """Probability that it gains 2 % or more, 0 to 1."""
        return self.odds * probability(self.prediction.speedup, SURE_GAIN)

    @property
    def assumed_probability(self) -> float:
        """The same with the odds as assumed; it decides the list, because measured programs were written to have what
        their fixes change."""
        return self.proposal.odds * probability(self.prediction.speedup, SURE_GAIN)

    @property
    def time_left(self) -> float:
        """Expected time with the fix / time now; 1 in the cases in which the fix does not work."""
        odds = self.odds
        return odds * time_left(self.prediction.speedup) + 1 - odds

    def shown(self, now_ns: float) -> Prediction:
        """The prediction to show; `now_ns`: the unchanged step, which a chain of fixes may also leave as it is."""
        if self.odds >= 1:
            return self.prediction
        gain, step = self.prediction.speedup, self.prediction.step
        mixed = with_odds(gain, self.odds)
        usual = round(step.expected * gain.expected / mixed.expected)
        # The slowest of ten outcomes is outside the interval: "no change" counts if it is more likely than that.
        as_it_is = round(now_ns * self.proposal.work) if self.odds < CERTAIN_CHANCE else 0
        shown = Range(min(step.low, usual), usual, max(step.high, as_it_is, usual))
        return Prediction(shown, mixed, self.prediction.step_j)

    @property
    def list(self) -> Literal["fixes", "worth_trying"] | None:
        """The list in which it is advised; None: it is not advised."""
        speedup = self.prediction.speedup
        if speedup.expected >= LEAST_GAIN and speedup.low >= SURE_GAIN and self.assumed_probability >= CERTAIN_CHANCE:
            return "fixes"
        likely = 1 / self.time_left >= LEAST_GAIN and self.assumed_probability >= LEAST_CHANCE
        return "worth_trying" if likely else None

    def share_left(self, left_ns: float | None) -> float:
        """Expected time of the rest of the run, `left_ns`, with the fix and its one-off cost, as a share of that
        rest."""
        return self.time_left + (self.proposal.once_ns[1] / left_ns if left_ns else 0.0)

    def rank(self, left_ns: float | None) -> tuple[bool, int, bool]:
        """Sort key, smallest first: fixes that leave the training unchanged before those that change it, then by the
        expected rest of the run, `left_ns`; within 1 % of that, those that remove what the verdict names."""
        return bool(self.proposal.changes), round(100 * self.share_left(left_ns)), not self.named


@dataclass(frozen=True, slots=True)
class Fixes:
    """The advised fixes, and those that could not be evaluated."""

    findings: tuple[Finding, ...]
    """Fixes of which nine in ten gain: those that leave the training unchanged first, then by the expected rest of the
    run."""
    combined: Combined | None
    """The best fixes together."""
    failed: tuple[tuple[str, str], ...]
    """(finding, error) for findings that could not be evaluated."""
    considered: tuple[Considered, ...] = ()
    """Usual remedies that are ruled out, with the reason."""
    worth_trying: tuple[Finding, ...] = ()
    """Fixes that probably gain, and much if they do, in the same order; each with the command that settles it."""


def fixes(case: Analysis, bound: Bound | None = None, tried: Mapping[str, str] | None = None) -> Fixes:
    """All fixes whose expected gain is worth it; `bound`: the verdict, which decides between fixes with equal gain.
    `tried`: finding → why its fix failed when it was tried; such a fix is listed as considered and not advised again.

    A finding that raises is reported and stops neither the diagnosis nor the other findings; with GPUPROF_DEBUG=1 it
    raises.
    """
    steps, added = PredictedSteps(case), plug_ins().findings
    found: list[_Predicted] = []
    failed: list[tuple[str, str]] = []
    considered: list[Considered] = []
    ruled_out: list[_Predicted] = []
    for page, find in (*FINDINGS, *((one.page, one.find) for one in added if one.find is not None)):
        if not page.applies_to(case.workload.kind):
            continue
        try:
            named = bound is not None and page.removes == bound
            proposals = [_Predicted(page.id, one, prediction(steps, [one]), named) for one in case.proposals(find)]
            failure = (tried or {}).get(page.id, "")
            found += (advised := [one for one in proposals if not (failure or _why_not(case, one))])
            if not advised:
                considered += _considered(case, page.id, proposals, failure)
                ruled_out += [one for one in proposals if not failure and one.list is None]
        except Exception as error:
            if os.environ.get("GPUPROF_DEBUG"):
                raise
            failed.append((page.id, type(error).__name__))
    found += [one for one in _only_together(steps, ruled_out) if one.list is not None]
    left_ns = _left_ns(case)
    found.sort(key=lambda one: one.rank(left_ns))
    sure, unsure = (_named_first([one for one in found if one.list == name], left_ns) for name in _LISTS)
    overlaps = partial(_overlap, steps)
    grouped = leaders_first(sure, overlaps)
    if later := _gains_after(steps, [one for one, first in grouped if first is None], ruled_out):
        grouped = leaders_first([*sure, later], overlaps)
    tries = leaders_first(unsure, overlaps, before=[one for one, first in grouped if first is None])
    return Fixes(
        findings=_findings(case, grouped),
        combined=_combined(steps, sure),
        failed=tuple(failed),
        considered=tuple(considered),
        worth_trying=_findings(case, tries),
    )


def _only_together(steps: PredictedSteps, ruled_out: Sequence[_Predicted]) -> Iterator[_Predicted]:
    """Fixes that gain together what none of them gains alone: two limits, or several small gains."""
    pair = best_pair(steps, [(one.id, one.proposal) for one in ruled_out])
    if pair is not None:
        both = [one for _, one in pair]
        needs = "both: either alone leaves the other limit"
        yield _Predicted(pair[0][0], _together(both, needs, BALANCED_ODDS), prediction(steps, both))
    named = {name for name, _ in pair or ()}
    left = [((one.id, one.proposal), one.prediction.speedup) for one in ruled_out if one.id not in named]
    if small := small_ones(left):
        some = [one for _, one in small]
        yield _Predicted(
            small[0][0], _together(some, "all of them: each gains little", SMALL_ODDS), prediction(steps, some)
        )


def _gains_after(
    steps: PredictedSteps, leaders: Sequence[_Predicted], ruled_out: Sequence[_Predicted]
) -> _Predicted | None:
    """One of the first fixes with another that gains only once it is made, as one entry; None if there is none."""
    found = gains_after(
        steps, [(one.id, one.proposal) for one in leaders], [(one.id, one.proposal) for one in ruled_out]
    )
    if found is None:
        return None
    both = [one for _, one in found]
    whole = _Predicted(found[0][0], _together(both), prediction(steps, both))
    return whole if whole.list == "fixes" else None


def _together(some: Sequence[Proposal], needs: str = "", odds: Share = 1.0) -> Proposal:
    """Several as one, with their change of the graph and what they do outside of it."""
    ordered = in_order(some)

    def change(graph: Graph) -> Graph:
        for one in ordered:
            graph = one.change(graph)
        return graph

    whole = as_one(some, needs, odds)
    loader = next((one.loader for one in ordered if one.loader is not None), None)
    least_ns = max(one.least_ns for one in some)
    return replace(whole, change=change, best=None, worst=None, loader=loader, least_ns=least_ns)


def _findings(case: Analysis, each: Iterable[tuple[_Predicted, _Predicted | None]]) -> tuple[Finding, ...]:
    """The findings of a list, with what they are alternatives to."""
    return tuple(
        replace(_finding(case, one), overlaps=None if first is None else first.proposal.title) for one, first in each
    )


def _overlap(steps: PredictedSteps, first: _Predicted, later: _Predicted) -> bool:
    """Whether a fix takes off mostly the time that another one takes off, or claims what that one claims and gains no
    more, as it may in a list whose fixes are less sure."""
    one, other = first.proposal, later.proposal
    excluded = first.id == later.id or not {*one.claims}.isdisjoint(other.claims)
    if excluded and (first.list == later.list or first.time_left <= later.time_left):
        return True
    case, both = steps.case, in_order([one, other])
    alone, together = (steps.begin(case.graph, [p.change for p in these], these) for these in ([one], both))
    own, gain = later.prediction.speedup.expected, other.work * alone() / together()
    return gain < LEAST_GAIN and math.log(gain) < OVERLAP * math.log(own)


def _named_first(found: list[_Predicted], left_ns: float | None) -> list[_Predicted]:
    """Fixes in order, but the first that removes what the verdict names comes on top if the top one gains too little
    more to be distinguished from it."""
    at = next((i for i, one in enumerate(found) if one.named), 0)
    if not at or bool(found[at].proposal.changes) != bool(found[0].proposal.changes):
        return found
    if found[at].share_left(left_ns) > LEAST_GAIN * found[0].share_left(left_ns):
        return found
    return [found[at], *found[:at], *found[at + 1 :]]


def _considered(case: Analysis, finding: str, proposals: list[_Predicted], failure: str) -> list[Considered]:
    """Why a finding advises nothing: its prediction, or the absence of its problem."""
    if proposals:
        best = max(proposals, key=lambda one: one.prediction.speedup.expected)
        found = best.prediction
        reason = f"failed in gpuprof try: {failure}" if failure else _why_not(case, best)
        return [Considered(finding, best.proposal.title, reason, found.step, found.speedup, bool(failure))]
    absent = ABSENT.get(finding) or next((one.absent for one in plug_ins().findings if one.id == finding), None)
    why = absent.why(case) if absent else None
    return [Considered(finding, absent.title, why)] if absent and why else []


def _why_not(case: Analysis, one: _Predicted) -> str:
    """Why a fix is not advised; empty if it is."""
    speedup = one.prediction.speedup
    if one.list is None and one.proposal.needs and time_left(speedup) * LEAST_GAIN <= 1:
        return f"works with a probability of {one.proposal.odds:.2f} only; needs: {one.proposal.needs}"
    if one.list is None and speedup.expected >= LEAST_GAIN and one.assumed_probability < LEAST_CHANCE:
        return (
            f"shortens {case.unit.a} by {100 * (SURE_GAIN - 1):.0f} % with a probability of"
            f" {one.assumed_probability:.2f} only"
        )
    if one.list is None:
        text = small_change(case, one.proposal, speedup)
        risky = speedup.expected >= LEAST_GAIN and speedup.low < 1 and one.proposal.odds >= 1
        return f"{text}, but at worst makes it {1 / speedup.low:.2g} times as long" if risky else text
    cost, left = one.proposal.once_ns[1], _steps_left(case)
    gain = case.mean_ns - one.prediction.step.expected / one.proposal.work
    if cost and left is not None and cost >= gain * left:
        return (
            f"it costs about {cost / 1e9:,.0f} s once and gains {duration(gain)} {case.unit.a}: earned back after "
            f"{math.ceil(cost / gain):,} {case.unit}s, and {left:,} are left"
        )
    return ""


def _steps_left(case: Analysis) -> int | None:
    """Steps in which a fix has to earn back its one-off cost: the rest of this run, or the next run like it; None if
    their number is unknown."""
    run = case.run
    if run is None or run.steps_total is None:
        return None
    return run.steps_total - run.steps_seen if run.remaining_ns else run.steps_total


def _left_ns(case: Analysis) -> float | None:
    """The remaining steps as time at today's step time, ns."""
    left = _steps_left(case)
    return None if left is None or left <= 0 else left * case.mean_ns


def _finding(case: Analysis, one: _Predicted) -> Finding:
    proposal, shown = one.proposal, one.shown(case.mean_ns)
    step, speedup, patch = shown.step, shown.speedup, proposal.fix.patch
    return Finding(
        id=one.id,
        title=proposal.title,
        severity="high" if speedup.expected >= SEVERE_GAIN else "medium" if speedup.expected >= MARKED_GAIN else "low",
        evidence=proposal.evidence,
        fix=str(proposal.fix),
        fix_lines=proposal.fix.lines,
        settings=proposal.fix.settings,
        patch=patch,
        step_ns=step,
        speedup=speedup,
        work=proposal.work,
        remaining_ns=_remaining(case, speedup, proposal.once_ns),
        changes=proposal.changes or None,
        once_ns=Range(*map(round, proposal.once_ns)) if proposal.once_ns[1] else None,
        probability=round(one.probability, 3),
        settle=None if proposal.parts or patch is None else patch.command(case.run.command if case.run else None),
        needs=proposal.needs or None,
        acts_on=acts_on(case, proposal),
        parts=proposal.parts,
        step_j=shown.step_j,
    )


def _remaining(case: Analysis, speedup: Range, once_ns: tuple[float, float, float]) -> Remaining | None:
    """The rest of the run with a fix, including its one-off cost and, if the training still runs, a restart."""
    run = case.run
    left = run.remaining_ns if run else None
    if run is None or not left:
        return None
    restart = (run.startup_ns or 0) if run.status == "running" else 0
    each = zip((speedup.high, speedup.expected, speedup.low), once_ns, strict=True)
    return Remaining(left, *(round(left / gain + once + restart) for gain, once in each))


def _combined(steps: PredictedSteps, predicted: Iterable[_Predicted]) -> Combined | None:
    """Adds fixes one by one, each time the one that gains most on top of those chosen, while there is a gain."""
    case, chosen = steps.case, list[_Predicted]()
    graph, before, left = case.graph, case.mean_ns, list(predicted)
    while left and len(chosen) < MOST_COMBINED:
        taken = {p.id for p in chosen}
        claimed = {claim for p in chosen for claim in p.proposal.claims}
        left = [p for p in left if p.id not in taken and not claimed.intersection(p.proposal.claims)]
        ready = sum(not one.proposal.last for one in chosen)
        trials = []
        for p in left:
            those = [one.proposal for one in (*chosen, p)]
            changes = [one.change for one in in_order(those)]
            trials.append((p, steps.begin(case.graph, changes, those, made=graph, count=ready)))
        if not trials:
            break
        steps_then = [step() for _, step in trials]
        gains = [p.proposal.work * before / step for (p, _), step in zip(trials, steps_then, strict=True)]
        most = max(range(len(gains)), key=gains.__getitem__)
        gain, step, best = gains[most], steps_then[most], trials[most][0]
        if gain < LEAST_GAIN:
            break
        chosen.append(best)
        if not best.proposal.last:
            graph = best.proposal.change(graph)
        before = step
    if len(chosen) < 2:
        return None
    found = prediction(steps, [p.proposal for p in chosen])
    return Combined(
        ids=tuple(p.id for p in chosen),
        titles=tuple(p.proposal.title for p in chosen),
        step_ns=found.step,
        speedup=found.speedup,
        work=math.prod(p.proposal.work for p in chosen),
        remaining_ns=_remaining(case, found.speedup, _sum(p.proposal.once_ns for p in chosen)),
    )


def _sum(each: Iterable[tuple[float, float, float]]) -> tuple[float, float, float]:
    low, expected, high = (sum(column) for column in zip(*each, strict=True))
    return low, expected, high
