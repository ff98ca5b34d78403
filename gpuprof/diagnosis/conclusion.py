"""What follows from a recording: from its replay, or if it cannot be replayed, from where its time went."""

from __future__ import annotations

from dataclasses import replace

from gpuprof.costs.roofline import Roofline
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.cpu_run import of_cpu_run
from gpuprof.diagnosis.detect.compiled.compiling import compiling_ns
from gpuprof.diagnosis.detect.cpu.collecting import collecting
from gpuprof.diagnosis.fixes.predict import Fixes, fixes
from gpuprof.diagnosis.fixes.trial_results import failures
from gpuprof.diagnosis.idle.gaps import COLLECTING
from gpuprof.diagnosis.idle.hidden_work import hidden_ns
from gpuprof.diagnosis.idle.long_copy import copy_sentence
from gpuprof.diagnosis.mean_step.budget import budget_of_recorded, in_words, usual_wait
from gpuprof.diagnosis.plain_diagnosis import plain_diagnosis
from gpuprof.diagnosis.plug_ins import plug_ins
from gpuprof.diagnosis.reach.ledger import above_reach
from gpuprof.diagnosis.reach.useful_flops import useful_work
from gpuprof.diagnosis.recorded.limits import part_shares
from gpuprof.diagnosis.recorded.quality import judged, no_verdict, with_issue
from gpuprof.diagnosis.recorded.roofline import beyond_peak, summarize
from gpuprof.diagnosis.recorded.shares import estimate, shares_of, with_excess, with_step
from gpuprof.diagnosis.result.diagnosis import Diagnosis, Issue, Profiler, RooflineSummary, Steps
from gpuprof.diagnosis.verdict.doubts import doubts
from gpuprof.diagnosis.verdict.estimate import estimate_devices
from gpuprof.diagnosis.verdict.rest_of_step import first_cause
from gpuprof.diagnosis.verdict.share_verdict import gains_of_shares, holds_with_missing_events, judge_shares, undecided
from gpuprof.diagnosis.verdict.verdict import judge, limit_of_usual_step, slow_kind, with_doubts
from gpuprof.diagnosis.verdict.verdict_summary import summary
from gpuprof.replay.cpu_waits import cpu_waits
from gpuprof.replay.noise import process_noise
from gpuprof.replay.sensitivity import Sensitivities
from gpuprof.replay.unprofiled.host_pace import pace_and_spread
from gpuprof.replay.unprofiled.profiler_fit import Removal
from gpuprof.timeline.cpu.cpu_compute import computes
from gpuprof.timeline.gpu.gpu_concurrency import take_turns
from gpuprof.units import Assumed, Share

NAMED_CPU_SHARE: Assumed[Share] = 0.02
"""Smallest share of the step, spent waiting for the CPU to compute on tensors itself, for which the phase of that
computing is named."""


def no_gpu_work(analysis: Analysis, advise: bool) -> Diagnosis:
    """The diagnosis of a recording without GPU work: what its timed steps show, if there are any."""
    if analysis.cpu_step is not None and analysis.quality.status != "unusable":
        return of_cpu_run(analysis, analysis.cpu_step, advise)
    verdict, budget = no_verdict(analysis.quality), analysis.budget
    if budget is not None:
        waits = usual_wait(analysis.folder, budget, analysis.unit)
        verdict = replace(verdict, sentences=(*in_words(budget, analysis.unit), *waits, *verdict.sentences))
    return plain_diagnosis(analysis, verdict=verdict, quality=analysis.quality, steps=analysis.step_times)


def by_replay(analysis: Analysis, advise: bool) -> Diagnosis:
    """The diagnosis of a replayed recording: what would shorten its step; `advise`: look for fixes, too."""
    steps, roof, budget = analysis.step_times, analysis.roofline, analysis.budget
    usual_ns = analysis.free_ns or steps.unprofiled_ns or analysis.step_ns
    estimated = estimate_devices(analysis.schedule, usual_ns, collecting(analysis))
    busiest = max(map(shares_of, estimated), key=lambda s: s.busy_ns)
    limits, turns = roof and roof.bound_shares, take_turns(analysis.timeline)
    stepless = steps.source == "none"
    compiling = compiling_ns(analysis)
    said = summary(busiest, analysis.kernels, limits, turns, compiling, analysis.alone, stepless, budget, analysis.unit)
    found = budget or budget_of_recorded(analysis.schedule.each_ns.tolist())
    noise = process_noise(analysis.sensitivities.host + analysis.sensitivities.input)
    if budget is not None:
        said = (*in_words(budget, analysis.unit), *said)
    said += copy_sentence(analysis.timeline)
    verdict = judge(
        analysis.removal, analysis.sensitivities, analysis.bound_parts, said, analysis.mean, analysis.ends_ns
    )
    slow = _slow_calls(analysis, compiling)
    if verdict.bound == "host" and first_cause(busiest.idle_ns) == COLLECTING:
        verdict = replace(verdict, cause=COLLECTING)
    usual = limit_of_usual_step(analysis.graph, verdict.bound, analysis.mean)
    verdict = replace(verdict, turns=turns, slow_calls=slow, computes=_computes(analysis), usual=usual)
    if verdict.bound is not None:
        waits, ranks = cpu_waits(analysis.graph), analysis.question.ranks
        doubted = doubts(analysis.timeline, busiest, steps, budget, roof, verdict.bound, ranks, waits)
        exposed = busiest.communication_ns / max(busiest.step_ns, 1)
        verdict = with_doubts(verdict, analysis.sensitivities, doubted, budget is not None, exposed, analysis.unit)
    tried = failures(analysis.folder.path if analysis.folder else None)
    advice = fixes(analysis, verdict.bound, tried) if advise else Fixes((), None, ())
    gains: Sensitivities | None = analysis.sensitivities
    if not analysis.is_whole and not holds_with_missing_events(verdict.bound, busiest):
        verdict, advice, gains = undecided(verdict), Fixes((), None, ()), None
    comparable = steps.unprofiled_ns is not None or analysis.schedule.has_usual_step
    steps = replace(
        steps,
        estimated_ns=round(analysis.step_ns),
        inflation=_inflation(steps, analysis.removal, analysis.step_ns) if comparable else None,
    )
    found_roof = roof and _with_useful_work(analysis, roof)
    left_out = (Issue("plug_in_failed", "info", text) for text in plug_ins().failures)
    quality = judged((*analysis.quality.issues, *map(_failed, advice.failed), *left_out))
    shown = [one.id for one in (*advice.findings, *advice.worth_trying)]
    return plain_diagnosis(
        analysis,
        verdict=verdict,
        quality=with_issue(quality, beyond_peak(found_roof, analysis.unit)),
        steps=steps,
        profiler=_profiler(steps, analysis),
        budget=replace(found, process_noise=noise) if found is not None else None,
        devices_estimated=estimated,
        roofline=found_roof,
        sensitivities=gains,
        findings=advice.findings,
        combined=advice.combined,
        considered=advice.considered,
        worth_trying=advice.worth_trying,
        above_reach=above_reach(analysis, _usual_ns(analysis), shown) if advise and verdict.bound is not None else None,
    )


def by_shares(analysis: Analysis) -> Diagnosis:
    """The diagnosis of a recording that cannot be replayed: where its time went."""
    steps, quality, roof, budget = analysis.step_times, analysis.quality, analysis.roofline, analysis.budget
    averages = [
        replace(s, hidden_ns=hidden_ns(analysis.whole, analysis.gaps, s.device) / steps.count)
        for s in analysis.averages
    ]
    measured = None if steps.unprofiled_ns is None else [with_step(s, steps.unprofiled_ns) for s in averages]
    if quality.status == "unusable":
        verdict = no_verdict(quality)
    else:
        busiest = max(measured or averages, key=lambda s: s.busy_ns)
        parts = part_shares(analysis.whole, roof, busiest.device)
        cost, turns = None if measured else analysis.profiler, take_turns(analysis.whole)
        said = summary(
            busiest,
            analysis.kernels,
            parts,
            turns,
            alone=analysis.alone,
            stepless=steps.source == "none",
            budget=budget,
            unit=analysis.unit,
        )
        said += copy_sentence(analysis.whole)
        mean = busiest
        if measured and budget is not None:
            mean, said = with_excess(busiest, budget), (*in_words(budget, analysis.unit), *said)
        verdict = replace(judge_shares(mean, parts, cost, analysis.is_whole, said, analysis.unit), turns=turns)
        if verdict.bound is not None:
            doubted = doubts(analysis.whole, busiest, steps, budget, roof, verdict.bound, analysis.question.ranks)
            verdict = with_doubts(verdict, gains_of_shares(mean, parts)[0], doubted, unit=analysis.unit)
    found_roof = roof and summarize(roof, steps.unprofiled_ns or steps.recorded_ns)
    return plain_diagnosis(
        analysis,
        verdict=verdict,
        quality=with_issue(quality, beyond_peak(found_roof, analysis.unit)),
        steps=steps,
        budget=budget or budget_of_recorded([float(ns) for ns in steps.each_ns]),
        devices_estimated=None if measured is None else tuple(map(estimate, measured)),
        roofline=found_roof,
    )


def _with_useful_work(analysis: Analysis, roof: Roofline) -> RooflineSummary:
    """The roofline whose MFU counts useful work only."""
    of_useful, useful = useful_work(analysis, roof)
    return summarize(of_useful, analysis.step_ns, useful)


def _usual_ns(analysis: Analysis) -> int | None:
    """The usual step as timed, ns; None if it was not timed."""
    return analysis.budget.usual_ns if analysis.budget is not None else analysis.step_times.unprofiled_ns


def _slow_calls(analysis: Analysis, compiling_ns: float) -> str | None:
    """What long CPU calls do: compiling if that accounts for most of their time, or else by what they contain."""
    found = slow_kind(analysis.graph)
    waited = sum(one.ns for d in analysis.device_times for one in d.idle_by_cause if one.cause == "slow_call")
    steps = max(analysis.step_times.count, 1)
    if compiling_ns and compiling_ns * steps >= waited / 2:
        return "compile"
    return None if found == "slow_call" else found


def _computes(analysis: Analysis) -> str | None:
    """The phase in which the CPU computes on tensors in host memory; None if the GPU hardly waits for that."""
    waited = sum(one.ns for d in analysis.device_times for one in d.idle_by_cause if one.cause == "cpu_compute")
    window = sum(d.window_ns for d in analysis.device_times)
    return computes(analysis.timeline) if waited >= NAMED_CPU_SHARE * window else None


def _failed(finding: tuple[str, str]) -> Issue:
    """The issue for a finding that could not be evaluated, which gpuprof's authors want to hear about."""
    name, error = finding
    return Issue(
        "finding_failed", "info", f"The finding {name} could not be evaluated ({error}): please report this recording."
    )


def _profiler(steps: Steps, analysis: Analysis) -> Profiler | None:
    """What recording added to a step: the step with the profiler − the step without."""
    counted, removal = analysis.profiler, analysis.removal
    if counted is None:
        return None
    slowed_ns = _slowed_ns(steps, removal)
    # The interval of an estimated step includes the noise between processes, which is no cost of recording.
    most = slowed_ns if removal.fitted else removal.cost_ns * pace_and_spread(removal.graph.timeline)[1]
    low, typical, high = (
        min(max(round(slowed_ns - ns), 0), round(most)) for ns in (removal.high_ns, removal.step_ns, removal.low_ns)
    )
    return Profiler(counted.events_per_step, low, typical, high)


def _slowed_ns(steps: Steps, removal: Removal) -> float:
    """The step with the cost of recording: the recorded step if the unprofiled one was measured, the replayed step if
    that was estimated. The rest of a recorded step passes before its first kernel and is no cost of recording."""
    return steps.recorded_ns if removal.fitted else min(steps.recorded_ns, removal.replayed_ns)


def _inflation(steps: Steps, removal: Removal, step_ns: float) -> float:
    if steps.unprofiled_ns is not None:
        return steps.recorded_ns / steps.unprofiled_ns
    return _slowed_ns(steps, removal) / step_ns
