"""From a trace to a diagnosis: each part is a function of the timeline; here they are put together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpuprof.costs.roofline import Roofline, roofline
from gpuprof.diagnosis.analyse import Analysis, analyse, bound_parts
from gpuprof.diagnosis.baseline import RareStep
from gpuprof.diagnosis.case import Case
from gpuprof.diagnosis.estimate import estimate_devices
from gpuprof.diagnosis.findings.recompiles import compiling_ns
from gpuprof.diagnosis.gap_summary import gap_summary
from gpuprof.diagnosis.gaps import GapColumns, find_gaps
from gpuprof.diagnosis.kernels import kernel_summary
from gpuprof.diagnosis.model import (
    Diagnosis,
    Environment,
    GpuName,
    Issue,
    Kernels,
    PhaseTime,
    Profiler,
    Quality,
    Replay,
    Run,
    Source,
    Steps,
    Verdict,
    Window,
)
from gpuprof.diagnosis.paired import both_kinds
from gpuprof.diagnosis.predict import Fixes, fixes
from gpuprof.diagnosis.range_times import phase_activity, range_times
from gpuprof.diagnosis.representative import representative
from gpuprof.diagnosis.roof import summarize
from gpuprof.diagnosis.run import RunFacts, no_trace, run_facts, worst_first
from gpuprof.diagnosis.sentences import in_ms
from gpuprof.diagnosis.share_verdict import judge_shares, summary, undecided, waits
from gpuprof.diagnosis.shares import Shares, average_step, devices, estimate, profiler_cost, shares_of, with_step
from gpuprof.diagnosis.stack import stack_of
from gpuprof.diagnosis.tables import Tables
from gpuprof.diagnosis.verdict import judge
from gpuprof.errors import GpuprofError
from gpuprof.timeline.devices import phase_times
from gpuprof.timeline.quality import check
from gpuprof.timeline.syncs import end_in_sync
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.timeline.turns import take_turns
from gpuprof.tracefile.model import Trace
from gpuprof.tracefile.run import RunFolder

NOISE = 0.15
"""Steps of one program differ by this much between hosts and hours (H200 runs: 10–20 %)."""

WAITING = 1.15
"""Nsight Systems slows a process down before it records, too: launch-bound steps took 1.08 times as long in 20 pairs of
processes on H200 hosts, with a standard error of 0.04; single pairs differ by up to 1.6 either way."""
SLOWED = 0.05
"""A step that recording slows down by less than this is the GPU's, and no tool that waits slows it down."""

_ON_CPU = (
    "This training ran on the CPU, where gpuprof times its steps but has no verdict. If there is a GPU, move the model"
    " and the batches to it."
)
"""In place of how to record a GPU: `gpuprof trace` would have."""


def diagnose(
    trace: Trace | None,
    *,
    run: RunFolder | None = None,
    named: Trace | None = None,
    failure: str = "",
    step: str | None = None,
    skip: int = 0,
    step_ms: float | None = None,
    top: int = 10,
    advise: bool = True,
) -> Diagnosis:
    """What the recording says about where a step's time goes.

    `run`: the run that it is of, whose unprofiled steps it is compared with; `trace` may then be None. `failure`: why
    it is, or why the run's other recording was not read. `named`: the same program recorded by torch.profiler, whose
    ops a `trace` of Nsight Systems is to have. `step`: regular expression on the range that is a step; `skip`: steps to
    leave out at the start; `step_ms`: a step's milliseconds measured without a profiler; `top`: rows in the lists of
    gaps and kernels; `advise`: look for fixes, too.
    Raises GpuprofError for options that do not fit the trace.
    """
    if step_ms is not None and not (0.001 <= step_ms < 1e9):
        raise GpuprofError(f"--step-ms {step_ms:g} is not a step time in milliseconds")
    if trace is None:
        if run is None:
            raise GpuprofError("there is neither a trace nor a run to diagnose")
        return _without_trace(run, failure)
    timeline = build_timeline(trace, step, skip)
    said: list[Issue] = []
    if named is not None:
        timeline, said = both_kinds(timeline, named, step, skip)
        trace = timeline.trace if timeline else trace
    elif failure:
        said = [Issue("recording_unread", "warning", f"Another recording of this run could not be read: {failure}.")]
    facts = None if run is None else run_facts(run, timeline is not None and end_in_sync(trace, timeline))
    quality = _quality(
        trace, timeline, facts, on_cpu=run is not None and run.own.gpu is None and bool(run.own.versions)
    )
    if said:
        quality = _judged((*quality.issues, *said))
    common: dict[str, Any] = {
        "source": _source(trace, run),
        "quality": quality,
        "environment": _environment(trace, run),
        "run": facts and facts.run,
        "_folder": run,
    }
    if timeline is None:
        return Diagnosis(
            **common, steps=None, window=None, devices=(), devices_estimated=None, gaps=None, kernels=None, phases=(),
            profiler=None, verdict=_no_verdict(quality),
        )  # fmt: skip
    columns = find_gaps(timeline)
    steps = _steps(timeline, _unprofiled(timeline, facts, step_ms))
    found = devices(timeline, columns)
    profiler = profiler_cost(timeline, found)
    common |= {
        "steps": steps,
        "window": Window(*timeline.window),
        "devices": found,
        "phases": _phases(timeline),
        "profiler": profiler,
        "ranges": range_times(timeline),
        "activity": phase_activity(timeline),
        "_tables": Tables(timeline, columns),
    }
    if not found:
        return Diagnosis(**common, devices_estimated=None, gaps=None, kernels=None, verdict=_no_verdict(quality))
    spread = _spread(facts, step_ms, steps)
    return _with_gpu(common, timeline, columns, spread, top, run, of_run=step_ms is None, advise=advise)


def _with_gpu(
    common: dict[str, Any], timeline: Timeline, columns: GapColumns, spread: tuple[float, float] | None, top: int,
    run: RunFolder | None, *, of_run: bool, advise: bool,
) -> Diagnosis:  # fmt: skip
    """The diagnosis of a recording with GPU work: by replay, or where that fails by what its time was spent on."""
    trace, steps, found, quality = timeline.trace, common["steps"], common["devices"], common["quality"]
    roof = roofline(timeline)
    kernels = kernel_summary(timeline, top, roof)
    recorded = [average_step(device, steps.count) for device in found]
    quality = _with(quality, _mismatch(steps, recorded, _rare(common["run"]), of_run=of_run))
    replay, analysis = (Replay(None, False), None)
    part = representative(timeline)
    if quality.status != "unusable":
        replay, analysis = analyse(part, roof, steps.unprofiled_ns, spread)
    common |= {
        "_tables": Tables(timeline, columns, roof),
        "quality": quality,
        "kernels": kernels,
        "gaps": gap_summary(timeline, columns, top),
        "replay": replay,
    }
    if analysis is None:
        whole = not trace.reading.truncated
        return _by_shares(common, steps, recorded, kernels, roof, common["profiler"], whole=whole)
    case = Case(
        timeline=part,
        origin_ns=timeline.window[0],
        removal=analysis.removal,
        sensitivities=analysis.sensitivities,
        roofline=roof,
        run=common["run"],
        stack=stack_of(trace, common["run"], _packages(run)),
    )
    return _by_replay(common, case, analysis, whole=not trace.reading.truncated, advise=advise)


def _by_replay(common: dict[str, Any], case: Case, analysis: Analysis, whole: bool, advise: bool) -> Diagnosis:
    """The diagnosis of a recording that was replayed: what would shorten its step."""
    steps, quality, roof = common["steps"], common["quality"], case.roofline
    estimated = estimate_devices(case.schedule, steps.unprofiled_ns or case.step_ns)
    busiest = max(map(shares_of, estimated), key=lambda s: s.busy_ns)
    parts = bound_parts(case.timeline, roof)
    limits, turns = roof and roof.bound_shares, take_turns(case.timeline)
    said = summary(busiest, common["kernels"], limits, turns, compiling_ns(case))
    rare = _rare(case.run)
    if rare is not None:
        took, mean = in_ms(rare.ns), in_ms(rare.mean_ns)
        said += f" Every {rare.every} steps one takes {took}, so the average step takes {mean}."
    verdict = judge(analysis.removal, analysis.sensitivities, parts, said)
    advice = fixes(case) if advise else Fixes((), None, ())
    if not whole and waits(busiest):
        verdict, advice = undecided(verdict), Fixes((), None, ())
    comparable = steps.unprofiled_ns is not None or case.schedule.has_usual_step
    steps = replace(
        steps,
        estimated_ns=round(case.step_ns),
        inflation=steps.recorded_ns / (steps.unprofiled_ns or case.step_ns) if comparable else None,
    )
    return Diagnosis(
        **{
            **common,
            "steps": steps,
            "profiler": _profiler(common["profiler"], steps, analysis),
            "quality": _judged((*quality.issues, *map(_failed, advice.failed))),
        },
        devices_estimated=estimated,
        verdict=verdict,
        roofline=roof and summarize(roof, case.step_ns),
        sensitivities=analysis.sensitivities,
        findings=advice.findings,
        combined=advice.combined,
        _case=case,
    )


def _rare(run: Run | None) -> RareStep | None:
    return run.baseline.rare if run else None


def _failed(finding: tuple[str, str]) -> Issue:
    """A finding that could not be evaluated, which the tool's authors want to hear of."""
    name, error = finding
    return Issue(
        "finding_failed", "info", f"The finding {name} could not be evaluated ({error}): please report this recording."
    )


def _by_shares(
    common: dict[str, Any], steps: Steps, recorded: list[Shares], kernels: Kernels, roof: Roofline | None,
    profiler: Profiler | None, whole: bool,
) -> Diagnosis:  # fmt: skip
    """The diagnosis of a recording that cannot be replayed: what its time was spent on."""
    measured = None if steps.unprofiled_ns is None else [with_step(s, steps.unprofiled_ns) for s in recorded]
    if common["quality"].status == "unusable":
        verdict = _no_verdict(common["quality"])
    else:
        busiest = max(measured or recorded, key=lambda s: s.busy_ns)
        verdict = judge_shares(busiest, kernels, None if measured else profiler, whole=whole)
    step = steps.unprofiled_ns or steps.recorded_ns
    return Diagnosis(
        **common,
        devices_estimated=None if measured is None else tuple(map(estimate, measured)),
        verdict=verdict,
        roofline=roof and summarize(roof, step),
    )


def _spread(facts: RunFacts | None, step_ms: float | None, steps: Steps) -> tuple[float, float] | None:
    """The 80 % interval of the measured step, where the run timed it."""
    if step_ms is not None or facts is None or facts.unprofiled is None:
        return None
    low, high = float(facts.unprofiled.low_ns), float(facts.unprofiled.high_ns)
    slowed = facts.under_nsys and steps.inflation is not None and steps.inflation > 1 + SLOWED
    return (low / WAITING if slowed else low), high


def _packages(run: RunFolder | None) -> frozenset[str]:
    return frozenset() if run is None else frozenset(run.own.versions)


def _profiler(counted: Profiler | None, steps: Steps, analysis: Analysis) -> Profiler | None:
    """What recording added to a step: the recorded step less the unprofiled one."""
    if counted is None:
        return None
    removal = analysis.removal
    low, typical, high = (
        max(round(steps.recorded_ns - ns), 0) for ns in (removal.high_ns, removal.step_ns, removal.low_ns)
    )
    return Profiler(counted.events_per_step, low, typical, high)


def _without_trace(run: RunFolder, failure: str) -> Diagnosis:
    """A run that was too short, died before its window, or failed to record: what its steps tell."""
    facts = run_facts(run)
    said = ("no_baseline", "baseline_work", "run_ended")  # by the first issue, or of no use without a trace
    others = (issue for issue in facts.issues if issue.id not in said)
    quality = _judged((no_trace(run, facts.run, failure), *others))
    return Diagnosis(
        source=Source(run.path, "run", 0, 0), quality=quality, environment=_environment(None, run), run=facts.run,
        steps=None, window=None, devices=(), devices_estimated=None, gaps=None, kernels=None, phases=(), profiler=None,
        verdict=_no_verdict(quality), _folder=run,
    )  # fmt: skip


def _unprofiled(timeline: Timeline, facts: RunFacts | None, step_ms: float | None) -> int | None:
    """The step without the profiler: as the user says, else as the run timed it."""
    if step_ms is not None:
        return round(step_ms * 1e6)
    if facts is None or facts.unprofiled is None or timeline.steps.source == "none":
        return None  # without steps the window is no step, and cannot be compared with one
    return facts.unprofiled.ns


def _source(trace: Trace, run: RunFolder | None) -> Source:
    reading = trace.reading
    if run is not None:
        return Source(run.path, "run", reading.size_bytes, reading.events)
    return Source(reading.path, reading.kind, reading.size_bytes, reading.events)


def _environment(trace: Trace | None, run: RunFolder | None) -> Environment:
    """What the trace says, and where it is silent what the run says."""
    gpus: tuple[GpuName, ...] = ()
    versions: dict[str, str | int | float] = {}
    rank = world_size = None
    if trace is not None:
        used = set(np.unique(trace.gpu.device).tolist())
        named = [g for g in trace.meta.gpus if not used or g.device in used] or list(trace.meta.gpus)
        gpus = tuple(GpuName(g.device, g.name, g.memory_bytes) for g in named)
        versions = dict(trace.meta.versions)
        rank, world_size = trace.meta.rank, trace.meta.world_size
    if run is not None:
        own = run.own
        if not gpus and own.gpu and own.gpu.name:
            gpus = (GpuName(own.gpu.index or 0, own.gpu.name, own.gpu.memory_bytes),)
        versions = {**own.versions, **versions}
        if rank is None and (own.world_size or 1) > 1:
            rank, world_size = run.rank, own.world_size
    return Environment(gpus, versions, rank, world_size)


def _quality(trace: Trace, timeline: Timeline | None, facts: RunFacts | None, on_cpu: bool) -> Quality:
    found = [
        Issue(f.id, f.severity, _ON_CPU if on_cpu and f.id == "no_gpu_events" else f.message)  # type: ignore[arg-type]
        for f in check(trace, timeline)
    ]
    return _judged((*found, *(facts.issues if facts else ())))


def _judged(issues: tuple[Issue, ...]) -> Quality:
    severities = {issue.severity for issue in issues}
    status = "unusable" if "error" in severities else "degraded" if "warning" in severities else "ok"
    return Quality(status, worst_first(issues))


def _mismatch(steps: Steps, recorded: list[Shares], rare: RareStep | None, of_run: bool) -> Issue | None:
    """A measured step that cannot be the like of those that were recorded; one of these may be a rare one."""
    measured = steps.unprofiled_ns
    if measured is None:
        return None
    work = max(s.compute_ns + s.copy_ns for s in recorded)
    if measured < (1 - NOISE) * work:
        if rare and of_run:
            return None
        what = f"is shorter than the GPU's own work in the recorded step ({work / 1e6:,.1f} ms)"
    elif measured > (1 + NOISE) * steps.recorded_ns:
        what = f"is longer than the step as recorded ({steps.recorded_ns / 1e6:,.1f} ms)"
    else:
        return None
    if of_run:
        return Issue(
            "baseline_mismatch",
            "warning",
            f"The unprofiled step of {measured / 1e6:,.1f} ms {what}: the steps that this run timed are unlike those"
            " that it recorded. Record again with a longer baseline, or give the step yourself: --step-ms MS.",
        )
    return Issue(
        "step_ms_mismatch",
        "warning",
        f"The measured step of {measured / 1e6:,.1f} ms {what}: it is of another batch, GPU or program. Time the same"
        " step, with the same shapes.",
    )


def _with(quality: Quality, issue: Issue | None) -> Quality:
    if issue is None:
        return quality
    return Quality("degraded" if quality.status == "ok" else quality.status, (*quality.issues, issue))


def _no_verdict(quality: Quality) -> Verdict:
    first = next((i.message for i in quality.issues if i.severity == "error"), "")
    return Verdict(bound=None, family=None, cause=None, confidence=None, summary=first)


def _steps(timeline: Timeline, unprofiled: int | None) -> Steps:
    steps = timeline.steps
    each = tuple((steps.end_ns - steps.start_ns).tolist())
    recorded = int(np.median(each))
    return Steps(
        source=steps.source,
        name=steps.name,
        count=len(each),
        each_ns=each,
        recorded_ns=recorded,
        unprofiled_ns=unprofiled,
        estimated_ns=None,
        inflation=None if unprofiled is None else recorded / unprofiled,
        cut=steps.cut,
    )


def _phases(timeline: Timeline) -> tuple[PhaseTime, ...]:
    if not timeline.devices:
        return ()
    times = phase_times(
        timeline.trace, timeline.links, timeline.kind, timeline.phase, timeline.devices, timeline.window
    )
    return tuple(PhaseTime(name, busy + idle, busy, idle) for name, (busy, idle) in times.items() if busy + idle)
