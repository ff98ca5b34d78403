"""From proposals to findings: each fix is made in the graph, the step replayed, and what does not gain is left out."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuprof.diagnosis.case import Case, Change
from gpuprof.diagnosis.diagnosis import Combined, Considered, Finding, Range, Remaining
from gpuprof.diagnosis.findings import ABSENT, FINDINGS
from gpuprof.diagnosis.proposal import MARKED, SEVERE, SURE, WORTH, Proposal
from gpuprof.diagnosis.sentences import in_ms
from gpuprof.replay.bound import Bound
from gpuprof.replay.graph import Graph
from gpuprof.replay.loader_queue import Loader
from gpuprof.replay.noise import PROCESS_NOISE
from gpuprof.replay.simulate import LARGE
from gpuprof.tracefile.background import Background

MOST_COMBINED = 4


@dataclass(frozen=True, slots=True)
class _Predicted:
    id: str
    proposal: Proposal
    step: Range
    named: bool = False
    """Whether the verdict names the problem that it removes."""

    @property
    def rank(self) -> tuple[bool, float]:
        """The smaller, the further up: what leaves the training as it is before what changes it, then by what it gains.
        A fix of what the verdict names counts with all that it may gain: another comes before it only if it is expected
        to gain more than that."""
        step_ns = self.step.low if self.named else self.step.expected
        return bool(self.proposal.changes), step_ns / self.proposal.work


@dataclass(frozen=True, slots=True)
class Fixes:
    """What is advised, and what could not be computed."""

    findings: tuple[Finding, ...]
    """Most gain first, among about equal ones what the verdict names; those that change the batch, and so the training
    itself, after those that do not."""
    combined: Combined | None
    """What the best of them do together."""
    failed: tuple[tuple[str, str], ...]
    """(finding, error) of those that could not be evaluated."""
    considered: tuple[Considered, ...] = ()
    """What is not advised although it often helps, and why."""


def fixes(case: Case, bound: Bound | None = None) -> Fixes:
    """All fixes that are expected to gain; `bound`: the verdict, which decides between those that gain about the same.

    One that fails takes neither the diagnosis nor the others with it, and is reported; GPUPROF_DEBUG=1 raises.
    """
    steps = Steps(case)
    found: list[_Predicted] = []
    failed: list[tuple[str, str]] = []
    considered: list[Considered] = []
    for page, find in FINDINGS:
        if not page.applies_to(case.workload.kind):
            continue
        try:
            named = bound is not None and page.removes == bound
            proposals = [_Predicted(page.id, one, predict(case, one, steps), named) for one in find(case)]
            found += (advised := [one for one in proposals if not _why_not(case, one)])
            if not advised:
                considered += _considered(case, page.id, proposals)
        except Exception as error:
            if os.environ.get("GPUPROF_DEBUG"):
                raise
            failed.append((page.id, type(error).__name__))
    found.sort(key=lambda one: one.rank)
    findings = tuple(_finding(case, one) for one in found)
    return Fixes(findings, _combined(steps, found), tuple(failed), tuple(considered))


def _considered(case: Case, finding: str, proposals: list[_Predicted]) -> list[Considered]:
    """Why a finding advises nothing: what it predicts, or that its problem is not there."""
    if proposals:
        best = min(proposals, key=lambda one: one.step.expected / one.proposal.work)
        return [Considered(finding, best.proposal.title, _why_not(case, best), best.step)]
    absent = ABSENT.get(finding)
    why = absent.why(case) if absent else None
    return [Considered(finding, absent.title, why)] if absent and why else []


def _why_not(case: Case, one: _Predicted) -> str:
    """Why a fix is not advised; empty if it is."""
    low, likely = (one.proposal.work * case.mean_ns / ns for ns in (one.step.high, one.step.expected))
    if likely < WORTH or low < SURE:
        high = one.proposal.work * case.mean_ns / one.step.low
        return f"{_step_words(case.mean_ns, one.step)}: {low:.2f} to {high:.2f}× as fast"
    cost, left = one.proposal.once_ns[1], _steps_left(case)
    gain = case.mean_ns - one.step.expected / one.proposal.work
    if cost and left is not None and cost >= gain * left:
        return (
            f"it costs about {cost / 1e9:,.0f} s once and gains {in_ms(gain)} a step: earned back after "
            f"{math.ceil(cost / gain):,} steps, and {left:,} are left"
        )
    return ""


def _step_words(now_ns: float, step: Range) -> str:
    return f"{in_ms(now_ns)} → {in_ms(step.low)} to {in_ms(step.high)}"


def _steps_left(case: Case) -> int | None:
    """Steps that a fix has to earn back what it costs once: those left of the run, or of the next one like it; None
    where no one says how many these are."""
    run = case.run
    if run is None or run.steps_total is None:
        return None
    return run.steps_total - run.steps_seen if run.remaining_ns else run.steps_total


class Steps:
    """The mean step of a case after fixes; each is simulated once."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._known: dict[tuple[Any, ...], tuple[object, Callable[[], float]]] = {}
        self._background = Background(worth_it=len(case.graph) >= LARGE)

    def after(
        self, graph: Graph, changes: Sequence[Change], proposals: Sequence[Proposal], made: Graph | None = None,
        count: int = 0,
    ) -> float:  # fmt: skip
        """The mean step of a graph after some changes, of these proposals: what they do to batches and lumps counts,
        too. A larger batch takes its workers longer.

        `made`: the graph with the first `count` of the changes, where it is there already.
        """
        return self.begin(graph, changes, proposals, made, count)()

    def begin(
        self, graph: Graph, changes: Sequence[Change], proposals: Sequence[Proposal], made: Graph | None = None,
        count: int = 0,
    ) -> Callable[[], float]:  # fmt: skip
        """`after` to be asked for later: makes the changes, and begins to simulate what they lead to."""
        loader = next((p.loader for p in proposals if p.loader is not None), self.case.mean.loader)
        lumps = {cause: factor for p in proposals for cause, factor in p.lumps.items()}
        least = _least_ns(proposals)
        if loader is not None:
            work = math.prod(p.work for p in proposals if not p.same_batch)
            loader = replace(loader, batch_ns=loader.batch_ns * work)
        key = (id(graph), *map(id, changes), loader, *sorted(lumps.items()), least)
        if key not in self._known:
            changed = graph if made is None else made
            for change in changes[count:]:
                changed = change(changed)
            ns = self._background.begin(self._mean_ns, changed, loader, lumps, least)
            self._known[key] = (graph, changes), ns  # kept with what the ids are of
        return self._known[key][1]

    def _mean_ns(self, graph: Graph, loader: Loader | None, lumps: dict[str, float], least: float) -> float:
        return max(self.case.mean.of(graph, loader=loader, lumps=lumps), least, 1.0)


def predict(case: Case, proposal: Proposal, steps: Steps | None = None) -> Range:
    """The step after a fix with its 80 % interval, ns."""
    return predict_together(case, [proposal], steps)


def predict_together(case: Case, proposals: Sequence[Proposal], steps: Steps | None = None) -> Range:
    """The step after several fixes at once with its 80 % interval, ns; without any, the step as it is."""
    return _together(steps or Steps(case), list(proposals))


def _together(steps: Steps, proposals: list[Proposal]) -> Range:
    """The step after some fixes with its 80 % interval, ns.

    Independent sources of uncertainty add up as squares of logarithms: how well each fix works (its best and worst
    case, the others being as expected), what the profiler cost, and, once for all, the noise between processes.
    """
    case, ordered = steps.case, _in_order(proposals)
    usual = [p.change for p in ordered]

    def step(graph: Graph, changes: list[Change]) -> float:
        return steps.after(graph, changes, ordered)

    def with_one(at: int, change: Change | None) -> float:
        return expected if change is None else step(case.graph, [*usual[:at], change, *usual[at + 1 :]])

    for graph in (case.graph, case.removal.quicker, case.removal.slower):
        steps.begin(graph, usual, ordered)
    for i, p in enumerate(ordered):
        for change in (p.best, p.worst):
            if change is not None:
                steps.begin(case.graph, [*usual[:i], change, *usual[i + 1 :]], ordered)
    shortest = _without_more_work(steps, ordered)
    expected = max(step(case.graph, usual), shortest)
    always = [math.log1p(PROCESS_NOISE), *(math.log(p.spread) for p in ordered)]
    quick = [step(case.removal.quicker, usual), *(with_one(i, p.best) for i, p in enumerate(ordered))]
    slow = [step(case.removal.slower, usual), *(with_one(i, p.worst) for i, p in enumerate(ordered))]
    low = _away(*always, *(math.log(expected / min(ns, expected)) for ns in quick))
    high = _away(*always, *(math.log(max(ns, expected) / expected) for ns in slow))
    return Range(round(max(expected * math.exp(-low), shortest)), round(expected), round(expected * math.exp(high)))


def _without_more_work(steps: Steps, ordered: list[Proposal]) -> float:
    """The step with the fixes that leave its batch as it is, ns: no larger batch makes a step shorter than that, which
    is the same machine's. 0 where no batch grows."""
    others = [p for p in ordered if p.same_batch or p.work <= 1]
    if len(others) == len(ordered):
        return 0.0
    return steps.after(steps.case.graph, [p.change for p in others], others)


def _in_order(proposals: list[Proposal]) -> list[Proposal]:
    return sorted(proposals, key=lambda p: p.last)


def _least_ns(proposals: Sequence[Proposal]) -> float:
    """No step is shorter: the longest of what each fix leaves outside the graph, for all the work that the others put
    into a step."""
    work = math.prod(p.work for p in proposals)
    return max((p.least_ns * work / p.work for p in proposals), default=0.0)


def _away(*parts: float) -> float:
    return math.sqrt(sum(part * part for part in parts))


def _finding(case: Case, one: _Predicted) -> Finding:
    proposal, step, now = one.proposal, one.step, case.mean_ns
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
        remaining_ns=_remaining(case, step, proposal.work, proposal.once_ns),
        changes=proposal.changes or None,
        once_ns=Range(*map(round, proposal.once_ns)) if proposal.once_ns[1] else None,
    )


def _remaining(case: Case, step: Range, work: float, once_ns: tuple[float, float, float]) -> Remaining | None:
    """The rest of the run with a fix: what that costs once, and starting again where the training still runs, are in
    it."""
    run = case.run
    left = run.remaining_ns if run else None
    if run is None or not left:
        return None
    restart = (run.startup_ns or 0) if run.status == "running" else 0
    each = zip((step.low, step.expected, step.high), once_ns, strict=True)
    return Remaining(left, *(round(left * ns / (case.mean_ns * work) + once + restart) for ns, once in each))


def _combined(steps: Steps, predicted: Iterable[_Predicted]) -> Combined | None:
    """Adds fix after fix, the one that gains most on top of those before it, while it still gains."""
    case, chosen = steps.case, list[_Predicted]()
    graph, before, left = case.graph, case.mean_ns, list(predicted)
    while left and len(chosen) < MOST_COMBINED:
        taken = {p.id for p in chosen}
        shut = {name for p in chosen for name in p.proposal.excludes}
        left = [p for p in left if p.id not in taken | shut and not taken & set(p.proposal.excludes)]
        trials = []
        for p in left:
            those = [one.proposal for one in (*chosen, p)]
            changes = [one.change for one in _in_order(those)]
            ready = sum(not one.proposal.last for one in chosen)
            trials.append((p, steps.begin(case.graph, changes, those, graph, ready)))
        if not trials:
            break
        gain, step, best = max(
            ((p.proposal.work * before / step_ns(), step_ns(), p) for p, step_ns in trials), key=lambda t: t[0]
        )
        if gain < WORTH:
            break
        chosen.append(best)
        if not best.proposal.last:
            graph = best.proposal.change(graph)
        before = step
    if len(chosen) < 2:
        return None
    work = math.prod(p.proposal.work for p in chosen)
    step_range = _together(steps, [p.proposal for p in chosen])
    gained = work * case.mean_ns
    return Combined(
        ids=tuple(p.id for p in chosen),
        titles=tuple(p.proposal.title for p in chosen),
        step_ns=step_range,
        speedup=Range(gained / step_range.high, gained / step_range.expected, gained / step_range.low),
        work=work,
        remaining_ns=_remaining(case, step_range, work, _sum(p.proposal.once_ns for p in chosen)),
    )


def _sum(each: Iterable[tuple[float, float, float]]) -> tuple[float, float, float]:
    low, expected, high = (sum(column) for column in zip(*each, strict=True))
    return low, expected, high
