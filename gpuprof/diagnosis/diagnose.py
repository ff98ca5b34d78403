"""From a trace to a diagnosis: each part is a function of the timeline; here they are put together."""

from __future__ import annotations

import numpy as np

from gpuprof.diagnosis.gaps import CAUSES, GapColumns, find_gaps
from gpuprof.diagnosis.kernels import kernel_summary
from gpuprof.diagnosis.model import (
    CauseTime,
    Device,
    DeviceEstimate,
    Diagnosis,
    Environment,
    Gap,
    Gaps,
    GpuName,
    Issue,
    PhaseGaps,
    PhaseTime,
    Profiler,
    Quality,
    Source,
    Steps,
    Verdict,
    Window,
)
from gpuprof.diagnosis.tables import Tables
from gpuprof.diagnosis.verdict import EVENT_COST_NS, Shares, judge, without_profiler
from gpuprof.errors import GpuprofError
from gpuprof.timeline.devices import DeviceTimeline, phase_times
from gpuprof.timeline.frames import module_class
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.quality import check
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.model import Trace


def diagnose(
    trace: Trace, *, step: str | None = None, skip: int = 0, step_ms: float | None = None, top: int = 10
) -> Diagnosis:
    """What the recording says about where a step's time goes.

    `step`: regular expression on the range that is a step; `skip`: steps to leave out at the start;
    `step_ms`: a step's milliseconds measured without a profiler; `top`: rows in the lists of gaps and kernels.
    Raises GpuprofError for options that do not fit the trace.
    """
    if step_ms is not None and not (0 < step_ms < 1e9):
        raise GpuprofError(f"--step-ms {step_ms:g} is not a step time in milliseconds")
    timeline = build_timeline(trace, step, skip)
    quality = _quality(trace, timeline)
    common = {"source": _source(trace), "quality": quality, "environment": _environment(trace)}
    if timeline is None:
        return Diagnosis(
            **common, steps=None, window=None, devices=(), devices_estimated=None, gaps=None, kernels=None, phases=(),
            profiler=None, verdict=_no_verdict(quality),
        )  # fmt: skip
    columns = find_gaps(timeline)
    kernels = kernel_summary(timeline, top)
    unprofiled = None if step_ms is None else round(step_ms * 1e6)
    steps = _steps(timeline, unprofiled)
    profiler = _profiler(timeline)
    verdict, estimated = _no_verdict(quality), None
    if timeline.devices:
        primary = max(timeline.devices, key=lambda d: d.compute_ns + d.communication_ns + d.copy_ns)
        if unprofiled is not None:
            estimated = _estimates(timeline, columns, steps, unprofiled)
        if quality.status != "unusable":
            shares = _shares(timeline, columns, primary)
            if unprofiled is not None:
                shares = without_profiler(shares, max(shares.step_ns - unprofiled, 0))
            verdict = judge(shares, kernels, profiler, measured=unprofiled is not None)
    low, high = timeline.window
    return Diagnosis(
        **common,
        steps=steps,
        window=Window(low, high),
        devices=tuple(_device(d, columns) for d in timeline.devices),
        devices_estimated=estimated,
        gaps=_gaps(timeline, columns, top) if timeline.devices else None,
        kernels=kernels if timeline.devices else None,
        phases=_phases(timeline),
        profiler=profiler,
        verdict=verdict,
        _tables=Tables(timeline, columns),
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


def _device(device: DeviceTimeline, columns: GapColumns) -> Device:
    window = device.high - device.low
    mine = columns.device == device.device
    unknown = int(columns.by_cause[mine, CAUSES.index("unknown")].sum())
    waiting = int(columns.unlaunched_ns[mine].sum())
    # Where nothing is known of any gap's launch the fraction is not zero, it is not known.
    known = device.idle_ns == 0 or unknown < device.idle_ns
    return Device(
        device=device.device,
        window_ns=window,
        compute_ns=device.compute_ns,
        communication_ns=device.communication_ns,
        copy_ns=device.copy_ns,
        idle_ns=device.idle_ns,
        busy_ns=window - device.idle_ns,
        carry_in_ns=device.carry_in_ns,
        carry_out_ns=device.carry_out_ns,
        cpu_bound_fraction=waiting / window if known else None,
        streams=device.streams,
    )


def _shares(timeline: Timeline, columns: GapColumns, device: DeviceTimeline) -> Shares:
    """The device's window as an average step."""
    count = len(timeline.steps.start_ns)
    mine = columns.device == device.device
    idle = columns.by_cause[mine].sum(axis=0).tolist()
    return Shares(
        step_ns=(device.high - device.low) / count,
        compute_ns=device.compute_ns / count,
        communication_ns=device.communication_ns / count,
        copy_ns=device.copy_ns / count,
        idle_ns={cause: ns / count for cause, ns in zip(CAUSES, idle, strict=True) if ns},
    )


def _estimates(timeline: Timeline, columns: GapColumns, steps: Steps, unprofiled: int) -> tuple[DeviceEstimate, ...]:
    """The measured step, parted like the recorded one: kernels keep their time, idle time is what is left.

    A measured step shorter than the device's work (another batch, another clock) scales the work down to fit.
    """
    estimates = []
    for device in timeline.devices:
        shares = _shares(timeline, columns, device)
        work = [shares.compute_ns, shares.communication_ns, shares.copy_ns]
        fit = min(1.0, unprofiled / sum(work)) if sum(work) else 1.0
        compute, communication, copy = (int(w * fit) for w in work)
        idle = unprofiled - compute - communication - copy
        after = without_profiler(shares, max(shares.step_ns - unprofiled, 0)).idle_ns
        waiting = sum(after.values()) - after.get("device", 0) - after.get("unknown", 0)
        estimates.append(
            DeviceEstimate(
                device=device.device,
                step_ns=unprofiled,
                compute_ns=compute,
                communication_ns=communication,
                copy_ns=copy,
                idle_ns=idle,
                cpu_bound_fraction=min(waiting, idle) / unprofiled,
            )
        )
    return tuple(estimates)


def _gaps(timeline: Timeline, columns: GapColumns, top: int) -> Gaps:
    ns = columns.ns
    totals = columns.by_cause.sum(axis=0)
    counts = (columns.by_cause > 0).sum(axis=0)
    causes = [CauseTime(c, int(t), int(n)) for c, t, n in zip(CAUSES, totals, counts, strict=True) if t]
    largest = np.argsort(-ns, kind="stable")[:top]
    return Gaps(
        count=len(ns),
        total_ns=int(ns.sum()),
        by_cause=tuple(sorted(causes, key=lambda c: -c.ns)),
        by_phase=_gaps_by_phase(timeline, columns),
        largest=tuple(_gap(timeline, columns, int(i)) for i in largest),
    )


def _gap(timeline: Timeline, columns: GapColumns, i: int) -> Gap:
    trace = timeline.trace
    op = int(columns.op[i])
    return Gap(
        start_ns=int(columns.start_ns[i]) - timeline.window[0],
        ns=int(columns.ns[i]),
        device=int(columns.device[i]),
        cause=CAUSES[columns.cause[i]],
        op=trace.strings[trace.ops.name[op]] if op >= 0 else None,
        module=trace.text(int(columns.module[i])),
        phase=PHASES[columns.phase[i]],
        frame=trace.text(int(columns.frame[i])),
    )


def _gaps_by_phase(timeline: Timeline, columns: GapColumns) -> tuple[PhaseGaps, ...]:
    """Idle time per phase; for each the op that most of it waits for, and the class of module that this is in."""
    trace = timeline.trace
    op = np.where(columns.op >= 0, trace.ops.name[columns.op] if len(trace.ops) else -1, -1).astype(np.int64)
    result = []
    for code in np.unique(columns.phase).tolist():
        rows = np.flatnonzero(columns.phase == code)
        first = _most(op[rows], columns.ns[rows])
        mine = rows[op[rows] == first]
        # Modules are numbered (Linear_12): their class is what repeats.
        times: dict[str, int] = {}
        for module in np.unique(columns.module[mine]).tolist():
            if module >= 0:
                name = module_class(trace.strings[module])
                times[name] = times.get(name, 0) + int(columns.ns[mine][columns.module[mine] == module].sum())
        result.append(
            PhaseGaps(
                phase=PHASES[code],
                ns=int(columns.ns[rows].sum()),
                count=len(rows),
                op=trace.text(first),
                module=max(times, key=lambda name: times[name]) if times else None,
            )
        )
    return tuple(sorted(result, key=lambda p: -p.ns))


def _most(keys: np.ndarray, ns: np.ndarray) -> int:
    """The key with most time."""
    distinct, inverse = np.unique(keys, return_inverse=True)
    time = np.zeros(len(distinct), np.int64)
    np.add.at(time, inverse, ns)
    return int(distinct[time.argmax()])


def _phases(timeline: Timeline) -> tuple[PhaseTime, ...]:
    if not timeline.devices:
        return ()
    times = phase_times(
        timeline.trace, timeline.links, timeline.kind, timeline.phase, timeline.devices, timeline.window
    )
    return tuple(PhaseTime(name, busy + idle, busy, idle) for name, (busy, idle) in times.items() if busy + idle)


def _profiler(timeline: Timeline) -> Profiler | None:
    """How many events the profiler recorded a step on the threads that drive the devices."""
    trace = timeline.trace
    threads = np.unique(np.append(timeline.links.thread[timeline.links.thread >= 0], timeline.main_thread))
    low, high = timeline.window
    events = 0
    for table in (trace.ops, trace.calls, trace.frames):
        if len(table):
            events += int(np.sum(np.isin(table.thread, threads) & (table.start_ns >= low) & (table.start_ns < high)))
    per_step = events // len(timeline.steps.start_ns)
    return Profiler(per_step, per_step * EVENT_COST_NS[0], per_step * EVENT_COST_NS[2]) if events else None
