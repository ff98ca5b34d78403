"""What follows from a recording: by its replay, or where it cannot be replayed by what its time was spent on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuprof.costs.roofline import Roofline
from gpuprof.diagnosis.above_reach import AboveReach
from gpuprof.diagnosis.analyse import Analysis, bound_parts, part_shares
from gpuprof.diagnosis.baseline import RareStep
from gpuprof.diagnosis.budget import budget_of_recorded, in_words
from gpuprof.diagnosis.budget_model import Budget
from gpuprof.diagnosis.case import Case
from gpuprof.diagnosis.detect.compiling import compiling_ns
from gpuprof.diagnosis.diagnosis import (
    Combined,
    Considered,
    Device,
    DeviceEstimate,
    Environment,
    Finding,
    Issue,
    Kernels,
    Profiler,
    Quality,
    RooflineSummary,
    Source,
    Steps,
    Verdict,
)
from gpuprof.diagnosis.doubts import doubts
from gpuprof.diagnosis.estimate import estimate_devices
from gpuprof.diagnosis.gaps import GapColumns
from gpuprof.diagnosis.hidden_work import hidden_ns
from gpuprof.diagnosis.long_copy import copy_sentence
from gpuprof.diagnosis.predict import Fixes, fixes
from gpuprof.diagnosis.quality import judged, no_verdict, with_issue
from gpuprof.diagnosis.reach.ledger import above_reach
from gpuprof.diagnosis.reach.useful_flops import with_useful_flops
from gpuprof.diagnosis.roofline import beyond_peak, summarize
from gpuprof.diagnosis.run_budget import Feed
from gpuprof.diagnosis.run_model import Run
from gpuprof.diagnosis.share_verdict import gains_of_shares, holds_with_missing_events, judge_shares, undecided
from gpuprof.diagnosis.shares import Shares, estimate, shares_of, with_excess, with_step
from gpuprof.diagnosis.summary import summary
from gpuprof.diagnosis.timed_steps import TimedSteps
from gpuprof.diagnosis.trial_results import failures
from gpuprof.diagnosis.usual_wait import usual_wait
from gpuprof.diagnosis.verdict import judge, with_doubts
from gpuprof.replay.cpu_waits import cpu_waits
from gpuprof.replay.graph import Graph
from gpuprof.replay.host_pace import pace_and_spread
from gpuprof.replay.mean_step import MeanStep
from gpuprof.replay.noise import process_noise
from gpuprof.replay.profiler_fit import Removal
from gpuprof.replay.sensitivity import Sensitivities
from gpuprof.timeline.gpu_concurrency import take_turns
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.run import RunFolder


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is known of a recording before anything is concluded from it."""

    source: Source
    environment: Environment
    quality: Quality
    run: Run | None
    folder: RunFolder | None
    timeline: Timeline
    gaps: GapColumns
    steps: Steps
    """Without an estimate."""
    budget: Budget | None
    """Of the mean step, where a run timed enough steps."""
    timed: TimedSteps | None
    """The steps that it is of."""
    feed: Feed | None
    """The workers that prepare batches, where their pace is known."""
    devices: tuple[Device, ...]
    profiler: Profiler | None
    """What recording may have cost by the events that it counted."""
    ranks: int = 1
    """Ranks of the training whose recordings are there."""

    @property
    def whole(self) -> bool:
        """Whether the file was read to its end."""
        return not self.timeline.trace.reading.truncated

    def mean_of(self, graph: Graph) -> MeanStep:
        """How the mean step follows from the graph of the usual one."""
        if self.budget is None:
            return MeanStep(graph)
        lumps = {one.cause: float(one.mean_ns or 0) for one in self.budget.excess if one.cause != "input"}
        if self.budget.paused_ns:
            lumps["pauses"] = float(self.budget.paused_ns)
        mean = MeanStep(
            graph,
            usual_ns=self.budget.usual_ns,
            mean_ns=self.budget.mean_ns,
            loader=None if self.feed is None else self.feed.loader,
            batches=1.0 if self.feed is None else self.feed.batches,
            lumps_ns=lumps,
            paced=self.feed is not None and self.feed.measured,
        )
        return mean.with_waits()

    @property
    def plans_apart(self) -> bool:
        """Whether the timed steps say what planning for new shapes costs, so that the usual step is one without."""
        found = self.budget
        return found is not None and any(one.cause == "new_shapes" for one in (*found.excess, *found.once))

    @property
    def free_ns(self) -> int | None:
        """The usual free-running step at the work of the recorded ones, where it was timed."""
        return self.run.baseline.free_ns if self.run is not None and self.budget is not None else None

    @property
    def ends_ns(self) -> tuple[float, float] | None:
        """Of the 80 % interval of the mean step, where it was timed."""
        return None if self.budget is None else (float(self.budget.low), float(self.budget.high))

    @property
    def alone(self) -> bool:
        """Whether there is one GPU and one rank."""
        talks = any(device.communication_ns for device in self.devices)
        ranks = self.environment.world_size or (2 if talks else 1)
        return ranks == 1 and len(self.devices) <= 1

    @property
    def rare(self) -> RareStep | None:
        return self.run.baseline.rare if self.run else None


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The verdict with all that it rests on."""

    verdict: Verdict
    quality: Quality
    steps: Steps
    profiler: Profiler | None
    budget: Budget | None = None
    devices_estimated: tuple[DeviceEstimate, ...] | None = None
    roofline: RooflineSummary | None = None
    sensitivities: Sensitivities | None = None
    findings: tuple[Finding, ...] = ()
    combined: Combined | None = None
    considered: tuple[Considered, ...] = ()
    worth_trying: tuple[Finding, ...] = ()
    above_reach: AboveReach | None = None
    case: Case | None = None
    """The replayed steps; None where they were not replayed."""


def no_gpu_work(recorded: Recorded) -> Conclusion:
    """Of a recording in which no device did anything: what its timed steps tell, if there are any."""
    quality = recorded.quality
    verdict = no_verdict(quality)
    if recorded.budget is not None:
        said = f"{in_words(recorded.budget)}{usual_wait(recorded.folder, recorded.budget)}{verdict.summary}"
        verdict = replace(verdict, summary=said)
    return Conclusion(verdict, quality, recorded.steps, recorded.profiler, recorded.budget)


def by_replay(recorded: Recorded, kernels: Kernels, case: Case, analysis: Analysis, advise: bool) -> Conclusion:
    """Of a recording that was replayed: what would shorten its step; `advise`: look for fixes, too."""
    steps, roof = recorded.steps, case.roofline
    estimated = estimate_devices(case.schedule, recorded.free_ns or steps.unprofiled_ns or case.step_ns)
    busiest = max(map(shares_of, estimated), key=lambda s: s.busy_ns)
    parts = bound_parts(case.timeline, roof)
    limits, turns = roof and roof.bound_shares, take_turns(case.timeline)
    stepless = steps.source == "none"
    said = summary(busiest, kernels, limits, turns, compiling_ns(case), recorded.alone, stepless, recorded.budget)
    found = recorded.budget or budget_of_recorded(case.schedule.each_ns.tolist())
    noise = process_noise(analysis.sensitivities.host + analysis.sensitivities.input)
    if recorded.budget is not None:
        said = f"{in_words(recorded.budget)}{said}"
    said += copy_sentence(case.timeline)
    verdict = judge(analysis.removal, analysis.sensitivities, parts, said, case.mean, recorded.ends_ns)
    if verdict.bound is not None:
        waits = cpu_waits(case.graph)
        doubted = doubts(case.timeline, busiest, steps, recorded.budget, roof, verdict.bound, recorded.ranks, waits)
        exposed = busiest.communication_ns / max(busiest.step_ns, 1)
        verdict = with_doubts(
            verdict, analysis.sensitivities, doubted, timed=recorded.budget is not None, exposed=exposed
        )
    tried = failures(recorded.folder.path if recorded.folder else None)
    advice = fixes(case, verdict.bound, tried) if advise else Fixes((), None, ())
    if not recorded.whole and not holds_with_missing_events(verdict.bound, busiest):
        verdict, advice = undecided(verdict), Fixes((), None, ())
    comparable = steps.unprofiled_ns is not None or case.schedule.has_usual_step
    steps = replace(
        steps,
        estimated_ns=round(case.step_ns),
        inflation=_inflation(steps, analysis.removal, case.step_ns) if comparable else None,
    )
    found_roof = roof and summarize(with_useful_flops(case, roof), case.step_ns)
    quality = judged((*recorded.quality.issues, *map(_failed, advice.failed)))
    return Conclusion(
        verdict=verdict,
        quality=with_issue(quality, beyond_peak(found_roof)),
        steps=steps,
        profiler=_profiler(recorded.profiler, steps, analysis),
        budget=replace(found, process_noise=noise) if found is not None else None,
        devices_estimated=estimated,
        roofline=found_roof,
        sensitivities=analysis.sensitivities,
        findings=advice.findings,
        combined=advice.combined,
        considered=advice.considered,
        worth_trying=advice.worth_trying,
        above_reach=above_reach(case, _usual_ns(recorded), {one.id for one in advice.findings}) if advise else None,
        case=case,
    )


def _usual_ns(recorded: Recorded) -> int | None:
    """The usual step as it was timed, None where it was not."""
    return recorded.budget.usual_ns if recorded.budget is not None else recorded.steps.unprofiled_ns


def by_shares(recorded: Recorded, kernels: Kernels, averages: list[Shares], roof: Roofline | None) -> Conclusion:
    """Of a recording that cannot be replayed: what its time was spent on; `averages`: each device's mean step."""
    steps, quality, profiler = recorded.steps, recorded.quality, recorded.profiler
    averages = [
        replace(s, hidden_ns=hidden_ns(recorded.timeline, recorded.gaps, s.device) / steps.count) for s in averages
    ]
    measured = None if steps.unprofiled_ns is None else [with_step(s, steps.unprofiled_ns) for s in averages]
    if quality.status == "unusable":
        verdict = no_verdict(quality)
    else:
        busiest = max(measured or averages, key=lambda s: s.busy_ns)
        parts = part_shares(recorded.timeline, roof, busiest.device)
        cost = None if measured else profiler
        said = summary(
            busiest,
            kernels,
            parts,
            take_turns(recorded.timeline),
            alone=recorded.alone,
            stepless=steps.source == "none",
            budget=recorded.budget,
        )
        said += copy_sentence(recorded.timeline)
        mean = busiest
        if measured and recorded.budget is not None:
            mean, said = with_excess(busiest, recorded.budget), f"{in_words(recorded.budget)}{said}"
        verdict = judge_shares(mean, parts, cost, recorded.whole, said)
        if verdict.bound is not None:
            doubted = doubts(recorded.timeline, busiest, steps, recorded.budget, roof, verdict.bound, recorded.ranks)
            verdict = with_doubts(verdict, gains_of_shares(mean, parts)[0], doubted)
    found_roof = roof and summarize(roof, steps.unprofiled_ns or steps.recorded_ns)
    return Conclusion(
        verdict=verdict,
        quality=with_issue(quality, beyond_peak(found_roof)),
        steps=steps,
        profiler=profiler,
        budget=recorded.budget or budget_of_recorded([float(ns) for ns in steps.each_ns]),
        devices_estimated=None if measured is None else tuple(map(estimate, measured)),
        roofline=found_roof,
    )


def _failed(finding: tuple[str, str]) -> Issue:
    """A finding that could not be evaluated, which the tool's authors want to hear of."""
    name, error = finding
    return Issue(
        "finding_failed", "info", f"The finding {name} could not be evaluated ({error}): please report this recording."
    )


def _profiler(counted: Profiler | None, steps: Steps, analysis: Analysis) -> Profiler | None:
    """What recording added to a step: the step with its cost less the step without."""
    if counted is None:
        return None
    removal = analysis.removal
    slowed_ns = _slowed_ns(steps, removal)
    # The ends of an estimated step are apart by the noise of processes, too, which recording does not cost.
    most = slowed_ns if removal.fitted else removal.cost_ns * pace_and_spread(removal.graph.timeline)[1]
    low, typical, high = (
        min(max(round(slowed_ns - ns), 0), round(most)) for ns in (removal.high_ns, removal.step_ns, removal.low_ns)
    )
    return Profiler(counted.events_per_step, low, typical, high)


def _slowed_ns(steps: Steps, removal: Removal) -> float:
    """The step with the cost of recording: the recorded one next to a measured step, the replayed one next to an
    estimated step. What a recorded step takes more passes before its first kernel and is no cost of recording."""
    return steps.recorded_ns if removal.fitted else min(steps.recorded_ns, removal.replayed_ns)


def _inflation(steps: Steps, removal: Removal, step_ns: float) -> float:
    if steps.unprofiled_ns is not None:
        return steps.recorded_ns / steps.unprofiled_ns
    return _slowed_ns(steps, removal) / step_ns
