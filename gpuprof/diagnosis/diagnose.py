"""From a trace to a diagnosis: each part is a function of the timeline; here they are put together."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuprof.diagnosis.gap_summary import gap_summary
from gpuprof.diagnosis.gaps import find_gaps
from gpuprof.diagnosis.kernels import kernel_summary
from gpuprof.diagnosis.model import (
    Diagnosis,
    Environment,
    GpuName,
    Issue,
    PhaseTime,
    Quality,
    Source,
    Steps,
    Verdict,
    Window,
)
from gpuprof.diagnosis.shares import Shares, average_step, devices, estimate, profiler_cost, with_step
from gpuprof.diagnosis.tables import Tables
from gpuprof.diagnosis.verdict import judge
from gpuprof.errors import GpuprofError
from gpuprof.timeline.devices import phase_times
from gpuprof.timeline.quality import check
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.model import Trace

NOISE = 0.15
"""Steps of one program differ by this much between hosts and hours (H200 runs: 10–20 %)."""


def diagnose(
    trace: Trace, *, step: str | None = None, skip: int = 0, step_ms: float | None = None, top: int = 10
) -> Diagnosis:
    """What the recording says about where a step's time goes.

    `step`: regular expression on the range that is a step; `skip`: steps to leave out at the start;
    `step_ms`: a step's milliseconds measured without a profiler; `top`: rows in the lists of gaps and kernels.
    Raises GpuprofError for options that do not fit the trace.
    """
    if step_ms is not None and not (0.001 <= step_ms < 1e9):
        raise GpuprofError(f"--step-ms {step_ms:g} is not a step time in milliseconds")
    timeline = build_timeline(trace, step, skip)
    quality = _quality(trace, timeline)
    common: dict[str, Any] = {
        "source": _source(trace),
        "quality": quality,
        "environment": _environment(trace),
    }
    if timeline is None:
        return Diagnosis(
            **common, steps=None, window=None, devices=(), devices_estimated=None, gaps=None, kernels=None, phases=(),
            profiler=None, verdict=_no_verdict(quality),
        )  # fmt: skip
    columns = find_gaps(timeline)
    steps = _steps(timeline, None if step_ms is None else round(step_ms * 1e6))
    found = devices(timeline, columns)
    profiler = profiler_cost(timeline, found)
    common |= {
        "steps": steps,
        "window": Window(*timeline.window),
        "devices": found,
        "phases": _phases(timeline),
        "profiler": profiler,
        "_tables": Tables(timeline, columns),
    }
    if not found:
        return Diagnosis(**common, devices_estimated=None, gaps=None, kernels=None, verdict=_no_verdict(quality))
    kernels = kernel_summary(timeline, top)
    recorded = [average_step(device, steps.count) for device in found]
    quality = _with(quality, _mismatch(steps, recorded))
    common["quality"] = quality
    measured = None if steps.unprofiled_ns is None else [with_step(s, steps.unprofiled_ns) for s in recorded]
    if quality.status == "unusable":
        verdict = _no_verdict(quality)
    else:
        busiest = max(measured or recorded, key=lambda s: s.busy_ns)
        verdict = judge(busiest, kernels, None if measured else profiler, whole=not trace.reading.truncated)
    return Diagnosis(
        **common,
        devices_estimated=None if measured is None else tuple(map(estimate, measured)),
        gaps=gap_summary(timeline, columns, top),
        kernels=kernels,
        verdict=verdict,
    )


def _source(trace: Trace) -> Source:
    reading = trace.reading
    return Source(reading.path, reading.kind, reading.size_bytes, reading.events)


def _environment(trace: Trace) -> Environment:
    used = set(np.unique(trace.gpu.device).tolist())
    gpus = [g for g in trace.meta.gpus if not used or g.device in used] or list(trace.meta.gpus)
    return Environment(
        gpus=tuple(GpuName(g.device, g.name, g.memory_bytes) for g in gpus),
        versions=dict(trace.meta.versions),
        rank=trace.meta.rank,
        world_size=trace.meta.world_size,
    )


def _quality(trace: Trace, timeline: Timeline | None) -> Quality:
    issues = tuple(Issue(f.id, f.severity, f.message) for f in check(trace, timeline))  # type: ignore[arg-type]
    severities = {issue.severity for issue in issues}
    status = "unusable" if "error" in severities else "degraded" if "warning" in severities else "ok"
    return Quality(status, issues)


def _mismatch(steps: Steps, recorded: list[Shares]) -> Issue | None:
    """A measured step that cannot be of the run that was recorded."""
    measured = steps.unprofiled_ns
    if measured is None:
        return None
    work = max(s.compute_ns + s.copy_ns for s in recorded)
    if measured < (1 - NOISE) * work:
        what = f"is shorter than the GPU's own work in the recorded step ({work / 1e6:,.1f} ms)"
    elif measured > (1 + NOISE) * steps.recorded_ns:
        what = f"is longer than the step as recorded ({steps.recorded_ns / 1e6:,.1f} ms)"
    else:
        return None
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
