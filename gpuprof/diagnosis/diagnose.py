"""From a trace to a diagnosis: each part is a function of the timeline; here they are put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.calibration import profiler as calibrated
from gpuprof.costs.roofline import Roofline, roofline
from gpuprof.diagnosis.analyse import Analysis, analyse
from gpuprof.diagnosis.baseline import RareStep
from gpuprof.diagnosis.budget_model import Budget
from gpuprof.diagnosis.case import Case
from gpuprof.diagnosis.conclusion import Conclusion, Recorded, by_replay, by_shares, no_gpu_work
from gpuprof.diagnosis.diagnosis import (
    Diagnosis,
    Environment,
    Gaps,
    Issue,
    Kernels,
    PhaseTime,
    Quality,
    Replay,
    Source,
    StartUpPart,
    StartUpTime,
    Steps,
    Window,
)
from gpuprof.diagnosis.environment import environment_of, source_of
from gpuprof.diagnosis.findings import missing_kernels
from gpuprof.diagnosis.gap_summary import gap_summary
from gpuprof.diagnosis.gaps import find_gaps
from gpuprof.diagnosis.host import host_of
from gpuprof.diagnosis.input_kind import trains_on_tokens, without_tokens
from gpuprof.diagnosis.kernels import kernel_summary
from gpuprof.diagnosis.quality import judged, no_verdict, of_start_up, quality_of, with_issue
from gpuprof.diagnosis.range_times import phase_activity, range_times
from gpuprof.diagnosis.representative_steps import representative
from gpuprof.diagnosis.run import RunFacts, no_trace, run_facts
from gpuprof.diagnosis.run_model import Run
from gpuprof.diagnosis.shares import Shares, average_step, devices, profiler_cost
from gpuprof.diagnosis.stack import stack_of
from gpuprof.diagnosis.tables import Tables
from gpuprof.diagnosis.trial_results import with_measured
from gpuprof.diagnosis.unit_words import reworded
from gpuprof.errors import GpuprofError
from gpuprof.replay.noise import MACHINE_NOISE
from gpuprof.timeline.devices import phase_times
from gpuprof.timeline.startup import MOST_START_UP, MUCH_START_UP
from gpuprof.timeline.syncs import end_in_sync
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.timeline.workload import Workload
from gpuprof.tracefile.run import RunFolder
from gpuprof.tracefile.samples import read_samples
from gpuprof.tracefile.trace import Trace

if TYPE_CHECKING:
    from gpuprof.projection.projection import Projection

NOT_REPLAYED = Replay(None, False)

WAITING = calibrated.NSYS_WAITING.value
"""Nsight Systems slows a process down before it records, too: launch-bound steps are up to this many times as long."""
SLOWED = 0.05
"""A step that recording slows down by less than this is the GPU's, and no tool that waits slows it down."""


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
    ranks: int = 1,
    of_all_ns: float | None = None,
) -> Diagnosis:
    """What the recording says about where a step's time goes.

    `run`: the run that it is of, whose unprofiled steps it is compared with; `trace` may then be None. `failure`: why
    it is, or why the run's other recording was not read. `named`: the same program recorded by torch.profiler, whose
    ops a `trace` of Nsight Systems is to have. `step`: regular expression on the range that is a step; `skip`: steps to
    leave out at the start; `step_ms`: a step's milliseconds measured without a profiler; `top`: rows in the lists of
    gaps and kernels; `advise`: look for fixes, too; `ranks`: how many of the training's were recorded; `of_all_ns`: the
    step of all of these, replayed together.
    Raises GpuprofError for options that do not fit the trace.
    """
    if step_ms is not None and not (0.001 <= step_ms < 1e9):
        raise GpuprofError(f"--step-ms {step_ms:g} is not a step time in milliseconds")
    if trace is None:
        if run is None:
            raise GpuprofError("there is neither a trace nor a run to diagnose")
        return _with_memory(_without_trace(run, failure), run)
    timeline = build_timeline(trace, step, skip)
    said: list[Issue] = []
    if named is not None:
        from gpuprof.diagnosis.paired_recordings import both_kinds

        timeline, said = both_kinds(timeline, named, step, skip)
        trace = timeline.trace if timeline else trace
    elif failure:
        said = [Issue("recording_unread", "warning", f"Another recording of this run could not be read: {failure}.")]
    facts = None if run is None else run_facts(run, timeline is not None and end_in_sync(trace, timeline))
    if facts is not None and timeline is not None and not trains_on_tokens(timeline, facts.run):
        facts = replace(facts, run=without_tokens(facts.run))
    on_cpu = run is not None and run.own.gpu is None and bool(run.own.versions)
    quality = quality_of(trace, timeline, facts, on_cpu)
    if said:
        quality = judged((*quality.issues, *said))
    source, environment = source_of(trace, run), environment_of(trace, run)
    if timeline is None:
        return _nothing_recorded(source, environment, quality, facts and facts.run, run)
    if facts is not None and facts.run is not None:
        timeline = _as_run(timeline, facts.run)
    gaps = find_gaps(timeline)
    found = devices(timeline, gaps)
    has_mean = facts is not None and step_ms is None and timeline.steps.source != "none"
    recorded = Recorded(
        source=source,
        environment=environment,
        quality=quality,
        run=facts and facts.run,
        folder=run,
        timeline=timeline,
        gaps=gaps,
        steps=_steps(timeline, _unprofiled(timeline, facts, step_ms)),
        budget=facts.budget if facts and has_mean else None,
        timed=facts.timed if facts and has_mean else None,
        feed=facts.feed if facts else None,
        devices=found,
        profiler=profiler_cost(timeline, found),
        ranks=ranks,
    )
    if not found:
        return _with_memory(_with_host(_diagnosis(recorded, no_gpu_work(recorded)), run), run, trace, timeline)
    spread = _spread(facts, step_ms, recorded.steps)
    diagnosis = _with_gpu(recorded, spread, top, of_run=step_ms is None, advise=advise, of_all_ns=of_all_ns)
    return _with_memory(_with_host(diagnosis, run), run, trace, timeline) if advise else diagnosis


def _with_gpu(
    recorded: Recorded, spread: tuple[float, float] | None, top: int, *, of_run: bool, advise: bool,
    of_all_ns: float | None,
) -> Diagnosis:  # fmt: skip
    """The diagnosis of a recording with GPU work: by replay, or where that fails by what its time was spent on.

    `spread`: the 80 % interval of the measured step; `of_run`: whether the run timed it, or else the user.
    """
    timeline, steps = recorded.timeline, recorded.steps
    roof = roofline(timeline)
    kernels = kernel_summary(timeline, top, roof)
    averages = [average_step(device, steps.count) for device in recorded.devices]
    mismatch = _mismatch(steps, averages, recorded.rare, of_run=of_run)
    recorded = replace(recorded, quality=with_issue(recorded.quality, mismatch))
    replay, analysis = NOT_REPLAYED, None
    part = representative(timeline)
    if recorded.quality.status != "unusable":
        replay, analysis = analyse(
            part, roof, steps.unprofiled_ns, spread, recorded.mean_of, of_all_ns, recorded.plans_apart
        )
    if analysis is None:
        conclusion = by_shares(recorded, kernels, averages, roof)
    else:
        case = _case(recorded, part, roof, analysis)
        conclusion = by_replay(recorded, kernels, case, analysis, advise and _is_of_steps(timeline))
    if timeline.start_up.share >= MOST_START_UP:
        conclusion = replace(conclusion, verdict=of_start_up(conclusion.verdict, timeline.start_up), sensitivities=None)
    return _diagnosis(recorded, conclusion, roof, kernels, gap_summary(timeline, recorded.gaps, top), replay)


def _case(recorded: Recorded, part: Timeline, roof: Roofline | None, analysis: Analysis) -> Case:
    """What findings look at; `part`: the steps that were replayed."""
    packages = frozenset() if recorded.folder is None else frozenset(recorded.folder.own.versions)
    return Case(
        timeline=part,
        origin_ns=recorded.timeline.window[0],
        removal=analysis.removal,
        sensitivities=analysis.sensitivities,
        roofline=roof,
        run=recorded.run,
        stack=stack_of(
            recorded.timeline.trace, recorded.run, packages, inference=recorded.timeline.workload.is_inference
        ),
        mean_step=analysis.mean,
        budget=recorded.budget,
        feed=recorded.feed,
        versions=environment_of(recorded.timeline.trace, recorded.folder).versions,
    )


def _diagnosis(
    recorded: Recorded, conclusion: Conclusion, roof: Roofline | None = None, kernels: Kernels | None = None,
    gaps: Gaps | None = None, replay: Replay = NOT_REPLAYED,
) -> Diagnosis:  # fmt: skip
    """All of a diagnosis: what was recorded, summed up, and what follows from it."""
    timeline = recorded.timeline
    return reworded(
        Diagnosis(
            source=recorded.source,
            quality=_noted(conclusion.quality, missing_kernels.note(recorded.run, conclusion.case)),
            environment=recorded.environment,
            steps=conclusion.steps,
            budget=conclusion.budget,
            window=Window(*timeline.window),
            devices=recorded.devices,
            devices_estimated=conclusion.devices_estimated,
            gaps=gaps,
            kernels=kernels,
            phases=_phases(timeline),
            profiler=conclusion.profiler,
            verdict=conclusion.verdict,
            run=recorded.run,
            workload=timeline.workload,
            start_up=_start_up(timeline),
            roofline=conclusion.roofline,
            replay=replay,
            sensitivities=conclusion.sensitivities,
            findings=with_measured(conclusion.findings, recorded.folder.path if recorded.folder else None),
            combined=conclusion.combined,
            considered=conclusion.considered,
            worth_trying=with_measured(conclusion.worth_trying, recorded.folder.path if recorded.folder else None),
            above_reach=conclusion.above_reach,
            ranges=range_times(timeline),
            activity=phase_activity(timeline),
            _tables=Tables(timeline, recorded.gaps, roof, _project),
            _folder=recorded.folder,
            _timed=recorded.timed,
            _case=conclusion.case,
        )
    )


def _with_host(diagnosis: Diagnosis, run: RunFolder | None) -> Diagnosis:
    """The diagnosis with the Python functions of the run's unprofiled steps, where they were sampled."""
    samples = None if run is None else read_samples(Path(run.path), run.rank)
    return replace(diagnosis, host=host_of(samples, diagnosis._case)) if samples is not None else diagnosis


def _with_memory(
    diagnosis: Diagnosis, run: RunFolder | None, trace: Trace | None = None, timeline: Timeline | None = None
) -> Diagnosis:
    """The diagnosis with its memory; what finds that is not loaded where none can have been recorded."""
    if run is None and (trace is None or not len(trace.memory)):
        return diagnosis
    from gpuprof.diagnosis.memory_section import with_memory

    return with_memory(diagnosis, run, trace, timeline)


def _project(diagnosis: Diagnosis, to: Sequence[str], **options: Any) -> Projection:
    """The diagnosed step on other GPUs, for its tables."""
    from gpuprof.diagnosis.projection_input.subject import subject_of
    from gpuprof.projection.project import project
    from gpuprof.projection.question import question

    asked = question(to, **options)
    return project(subject_of(diagnosis, None), asked)


def _noted(quality: Quality, issue: Issue | None) -> Quality:
    """One more issue among the others."""
    return quality if issue is None else judged((*quality.issues, issue))


def _without_trace(run: RunFolder, failure: str) -> Diagnosis:
    """A run that was too short, died before its window, or failed to record: what its steps tell."""
    facts = run_facts(run)
    said = ("no_baseline", "baseline_work", "run_ended")  # by the first issue, or of no use without a trace
    others = (issue for issue in facts.issues if issue.id not in said)
    quality = judged((no_trace(run, facts.run, failure), *others))
    source = Source(run.path, "run", 0, 0)
    return _nothing_recorded(source, environment_of(None, run), quality, facts.run, run, facts.budget)


def _nothing_recorded(
    source: Source, environment: Environment, quality: Quality, run: Run | None, folder: RunFolder | None,
    budget: Budget | None = None,
) -> Diagnosis:  # fmt: skip
    """Without a timeline: what is wrong with the recording, and what the run knows."""
    return Diagnosis(
        source=source, quality=quality, environment=environment, run=run, steps=None, budget=budget,
        window=None, devices=(), devices_estimated=None, gaps=None, kernels=None, phases=(), profiler=None,
        verdict=no_verdict(quality), _folder=folder,
    )  # fmt: skip


def _spread(facts: RunFacts | None, step_ms: float | None, steps: Steps) -> tuple[float, float] | None:
    """The 80 % interval of the measured step, where the run timed it."""
    if step_ms is not None or facts is None or facts.unprofiled is None:
        return None
    low, high = float(facts.unprofiled.low_ns), float(facts.unprofiled.high_ns)
    slowed = facts.under_nsys and steps.inflation is not None and steps.inflation > 1 + SLOWED
    return (low / WAITING if slowed else low), high


def _unprofiled(timeline: Timeline, facts: RunFacts | None, step_ms: float | None) -> int | None:
    """The step without the profiler: as the user says, else as the run timed it."""
    if step_ms is not None:
        return round(step_ms * 1e6)
    if facts is None or facts.unprofiled is None or timeline.steps.source == "none":
        return None  # without steps the window is no step, and cannot be compared with one
    return facts.unprofiled.ns


def _mismatch(steps: Steps, recorded: list[Shares], rare: RareStep | None, of_run: bool) -> Issue | None:
    """A measured step that cannot be the like of those that were recorded; one of these may be a rare one."""
    measured = steps.unprofiled_ns
    if measured is None:
        return None
    work = max(s.compute_ns + s.copy_ns for s in recorded)
    if measured < (1 - MACHINE_NOISE) * work:
        if rare and of_run:
            return None
        what = f"is shorter than the GPU's own work in the recorded step ({work / 1e6:,.1f} ms)"
    elif measured > (1 + MACHINE_NOISE) * steps.recorded_ns:
        what = f"is longer than the step as recorded ({steps.recorded_ns / 1e6:,.1f} ms)"
    else:
        return None
    if of_run:
        return Issue(
            "baseline_mismatch",
            "warning",
            f"The unprofiled step of {measured / 1e6:,.1f} ms {what}: the timed steps of this run differ from"
            " the recorded ones. Record again with a longer baseline, or give the step yourself: --step-ms MS.",
        )
    return Issue(
        "step_ms_mismatch",
        "warning",
        f"The measured step of {measured / 1e6:,.1f} ms {what}: it belongs to another batch, GPU or program."
        f" Time the same"
        " step, with the same shapes.",
    )


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


def _as_run(timeline: Timeline, run: Run) -> Timeline:
    """The timeline of a run, which knows of an optimizer or a trainer whatever its window shows."""
    if run.optimizer or run.step_source in ("optimizer", "trainer"):
        return replace(timeline, workload=Workload("training", reason="the run has an optimizer"))
    return timeline


def _is_of_steps(timeline: Timeline) -> bool:
    """Whether what is analysed repeats, so that fixes can be predicted from it."""
    return timeline.steps.source != "none" and timeline.start_up.share < MUCH_START_UP


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
