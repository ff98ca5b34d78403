"""Makes a Diagnosis of an analysis: a summary of the recording, with the conclusions."""

from __future__ import annotations

from collections.abc import Sequence

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.estimated_power import with_estimate
from gpuprof.diagnosis.findings import BUILT_IN
from gpuprof.diagnosis.fixes.trial_results import with_measured
from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.recorded.gap_summary import gap_summary
from gpuprof.diagnosis.recorded.quality import judged, no_verdict
from gpuprof.diagnosis.recorded.range_times import phase_activity, range_times
from gpuprof.diagnosis.result.above_reach import AboveReach
from gpuprof.diagnosis.result.diagnosis import (
    AnalysedWindow,
    DeviceEstimate,
    Diagnosis,
    PhaseTime,
    Profiler,
    Quality,
    RooflineSummary,
    StartUpPart,
    StartUpTime,
    Steps,
    Verdict,
)
from gpuprof.diagnosis.result.finding_model import Combined, Considered, Finding
from gpuprof.replay.sensitivity import Sensitivities
from gpuprof.timeline.devices import phase_times
from gpuprof.timeline.timeline import Timeline


def plain_diagnosis(
    analysis: Analysis,
    *,
    verdict: Verdict,
    quality: Quality,
    steps: Steps,
    profiler: Profiler | None = None,
    budget: Budget | None = None,
    devices_estimated: tuple[DeviceEstimate, ...] | None = None,
    roofline: RooflineSummary | None = None,
    sensitivities: Sensitivities | None = None,
    findings: Sequence[Finding] = (),
    combined: Combined | None = None,
    considered: tuple[Considered, ...] = (),
    worth_trying: Sequence[Finding] = (),
    above_reach: AboveReach | None = None,
) -> Diagnosis:
    """The diagnosis of recorded steps; `profiler` and `budget` replace the analysis's own if given."""
    timeline, folder, on_gpu = analysis.whole, analysis.folder, bool(analysis.device_times)
    case = analysis if analysis.is_replayed else None
    notes = [note for one in BUILT_IN if one.note is not None and (note := one.note(analysis.run, case)) is not None]
    return Diagnosis(
        source=analysis.source,
        quality=judged((*quality.issues, *notes)) if notes else quality,
        environment=analysis.environment,
        steps=steps,
        budget=budget or analysis.budget,
        window=AnalysedWindow(*timeline.window),
        devices=analysis.device_times,
        devices_estimated=devices_estimated,
        gaps=gap_summary(timeline, analysis.gaps, analysis.question.asked.top) if on_gpu else None,
        kernels=analysis.kernels if on_gpu else None,
        phases=_phases(timeline),
        profiler=profiler or analysis.profiler,
        verdict=verdict,
        run=with_estimate(analysis),
        workload=timeline.workload,
        start_up=_start_up(timeline),
        roofline=roofline,
        replay=analysis.replay,
        sensitivities=sensitivities,
        findings=with_measured(findings, folder.path if folder else None),
        combined=combined,
        considered=considered,
        worth_trying=with_measured(worth_trying, folder.path if folder else None),
        above_reach=above_reach,
        ranges=range_times(timeline),
        activity=phase_activity(timeline),
        _analysis=analysis,
    )


def without_steps(analysis: Analysis, quality: Quality) -> Diagnosis:
    """The diagnosis without a timeline: what is wrong with the recording, and what the run's files say."""
    return Diagnosis(
        source=analysis.source, quality=quality, environment=analysis.environment, run=analysis.run, steps=None,
        budget=analysis.budget, window=None, devices=(), devices_estimated=None, gaps=None, kernels=None, phases=(),
        profiler=None, verdict=no_verdict(quality), cpu_step=analysis.cpu_step, _analysis=analysis,
    )  # fmt: skip


def _start_up(timeline: Timeline) -> StartUpTime:
    found = timeline.start_up
    return StartUpTime(found.ns, found.share, tuple(StartUpPart(name, ns) for name, ns in found.parts))


def _phases(timeline: Timeline) -> tuple[PhaseTime, ...]:
    if not timeline.devices or not timeline.host.known:
        return ()
    times = phase_times(
        timeline.trace, timeline.links, timeline.kind, timeline.phase, timeline.devices, timeline.window
    )
    return tuple(PhaseTime(name, busy + idle, busy, idle) for name, (busy, idle) in times.items() if busy + idle)
