"""How reliable a recording is: what is wrong with it, what that means, and what to do.

Severities: with an `error` no verdict can be given; with a `warning` the numbers are less reliable than they seem; an
`info` is good to know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuprof.timeline.cpu.dispatch import has_ops, lacks_inner_ops
from gpuprof.timeline.cpu.overhead import profiler_overhead
from gpuprof.timeline.gpu.graph_captures import captures, within
from gpuprof.timeline.intervals import clip
from gpuprof.timeline.startup import MUCH_START_UP
from gpuprof.timeline.steps import LONGEST_WINDOW_NS, whole_ns
from gpuprof.timeline.timeline import Timeline
from gpuprof.timeline.unit import STEP, Unit
from gpuprof.tracefile.trace import ABSENT, KERNEL, NO_TEXT, OP, WHOLE_GRAPH, Trace
from gpuprof.units import Assumed, Events, Share, WholeNs

LAUNCH_CALL = re.compile(r"^(cuda|hip|cu)((Ext|Module)*Launch(?!HostFunc)|GraphLaunch)")
"""Calls that must lead to GPU work. Copies and sets need not: those of no bytes leave none."""

LOST_SHARE: Assumed[Share] = 0.02
"""Launches without GPU work up to this share are ordinary: the last ones before the recording stopped."""
MOST_LOST: Assumed[Share] = 0.5
"""With a larger share of launches without GPU work, the recording says nothing about the device."""
FEWEST_EVENTS: Assumed[Events] = 10
EMPTY_WINDOW_SHARE: Assumed[Share] = 0.01
"""Fewer GPU events than this that fill less than this of the window are not a step's work."""
LEAST_WORK_NS: Assumed[WholeNs] = 1_000
"""Nor is GPU work that takes less than this, ns: one launch takes longer."""
OVERHEAD_SHARE: Assumed[Share] = 0.01
"""Smallest share of the window of the profiler's own overhead, as it records it, that is reported."""
OVERHEAD_SEVERE: Assumed[Share] = 0.05
END_OF_RECORDING: Assumed[Share] = 0.02
"""Part of the recording in which the last GPU work must end for what was launched after it to be waiting still."""
TOUCHING_SHARE: Assumed[Share] = 0.9
"""Smallest share of the window that steps cover if they follow each other; logging and saving between them take some
per cent."""
START_UP_SHARE: Assumed[Share] = 0.02
"""Smallest share of the window of the program's start that is mentioned."""
AHEAD_SHARE: Assumed[Share] = 0.25
"""If work ends this share of the window after it, the CPU's steps are not the device's."""


@dataclass(frozen=True, slots=True)
class QualityIssue:
    """One thing about a recording, for the person who reads the numbers."""

    id: str
    severity: str
    message: str


def check(trace: Trace, timeline: Timeline | None) -> tuple[QualityIssue, ...]:
    """Everything that is wrong with a recording, worst first."""
    unit = STEP if timeline is None else timeline.unit
    found = (*_of_file(trace, unit), *_of_events(trace, timeline))
    return tuple(sorted(found, key=lambda issue: ("error", "warning", "info").index(issue.severity)))


def _of_file(trace: Trace, unit: Unit) -> Iterator[QualityIssue]:
    """What could not be read, or had to be repaired."""
    reading = trace.reading
    if reading.truncated:
        yield QualityIssue(
            "truncated",
            "warning",
            f"The file is cut: {reading.truncated}. {reading.events:,} events could be read; the file is not"
            f" sorted by time, so any {unit} may lack some. Let the export finish before the job ends and record"
            " again.",
        )
    if reading.dropped:
        yield QualityIssue(
            "unreadable_events",
            "warning",
            f"{reading.dropped:,} events could not be read and were left out, such as {reading.dropped_sample!r}.",
        )
    if reading.more == "document":
        yield QualityIssue(
            "several_documents",
            "warning",
            "The file holds more than one recording, one after the other: only the first was read. Export each to its"
            " own file.",
        )
    if reading.more == "list":
        yield QualityIssue(
            "two_event_lists",
            "warning",
            "The file holds two lists of events, read as one recording: if they are of two, times and shares mix both."
            " Export each to its own file.",
        )
    if reading.repaired:
        yield QualityIssue(
            "repaired_events",
            "info",
            f"{reading.repaired:,} events were not valid JSON (control characters, quotes, nan) and were repaired.",
        )


def _of_events(trace: Trace, timeline: Timeline | None) -> Iterator[QualityIssue]:
    """What the recorded events lack or contradict."""
    if timeline is None and (span := whole_ns(trace)):
        yield QualityIssue(
            "impossible_times",
            "error",
            f"The times in this file lie up to {span / 86_400e9:,.1f} days apart: some of them are wrong, so none is"
            " reliable. Record again; if only some events are wrong, name the range that is a step with --step.",
        )
        return
    if timeline is None:
        yield QualityIssue(
            "no_events",
            "error",
            "The trace contains no op, no call and no GPU event with a duration: nothing was recorded. Step the"
            " profiler through its active steps before it stops, and record again.",
        )
        return
    launches = _launches(trace)
    if not len(trace.gpu):
        yield _no_gpu(trace, launches, timeline.unit)
    else:
        yield from _launches_without_work(trace, timeline, launches)
        yield from _work_without_launches(timeline)
        yield from _cpu_ahead(timeline)
        yield from _little_work(timeline)
        yield from _silent_end(trace, timeline)
    yield from _work_far_away(timeline)
    negative = sum(int((t.end_ns < t.start_ns).sum()) for t in (trace.ops, trace.calls, trace.gpu, trace.frames))
    if negative:
        yield QualityIssue(
            "negative_durations",
            "warning",
            f"{negative:,} events end before they start (a clock problem of the driver): they count as taking no time.",
        )
    yield from _of_steps(timeline)
    yield from _start_up(timeline)
    yield from _of_cpu(trace, timeline)


def _no_gpu(trace: Trace, launches: np.ndarray, unit: Unit) -> QualityIssue:
    """Why a recording holds no GPU events."""
    count = int(launches.sum())
    if count:
        captured = int(within(captures(trace), trace.calls.start_ns[launches]).sum())
        if captured > MOST_LOST * count:
            return _graph_capture("error", captured, count, unit)
        return QualityIssue(
            "no_gpu_events",
            "error",
            f"{count:,} kernels and copies were launched but no GPU event was recorded: CUPTI delivered nothing"
            " (another profiler attached, missing permission for GPU counters, or a driver that does not match)."
            " Free CUPTI and record again.",
        )
    if trace.reading.truncated:
        return QualityIssue(
            "no_gpu_events",
            "error",
            "The part of the file that could be read holds no GPU events: the profiler writes them last. Let the export"
            " finish before the job ends and record again.",
        )
    if other := _other_accelerator(trace):
        return QualityIssue(
            "no_gpu_events",
            "error",
            f"This records {other}: its events are kept, but gpuprof has a verdict only for CUDA and ROCm GPUs.",
        )
    return QualityIssue(
        "no_gpu_events",
        "error",
        "The trace holds no GPU events: the recording was made on the CPU only. Record with"
        " activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
    )


_ACCELERATORS = {
    "mtia": "an MTIA accelerator",
    "hpu": "a Gaudi accelerator (HPU)",
    "npu": "an Ascend accelerator (NPU)",
    "xla": "an XLA device",
    "privateuse1": "an accelerator behind PyTorch's PrivateUse1",
}
"""How the categories of their events begin."""


def _other_accelerator(trace: Trace) -> str | None:
    """The device other than a GPU whose events were recorded; None without any."""
    for category in np.unique(trace.other.category).tolist():
        text = (trace.text(category) or "").lower()
        found = next((said for begin, said in _ACCELERATORS.items() if text.startswith(begin)), None)
        if found:
            return found
    return None


def _launches(trace: Trace) -> np.ndarray:
    """Mask of the calls that put work on a device."""
    return trace.rows_named(trace.calls.name, LAUNCH_CALL.search)


def _launches_without_work(trace: Trace, timeline: Timeline, launches: np.ndarray) -> Iterator[QualityIssue]:
    """Launches of the window whose GPU work is not there: captured into a graph, still in the queue, or lost."""
    unit = timeline.unit
    calls = trace.calls
    low, high = timeline.window
    inside = launches & (calls.start_ns >= low) & (calls.start_ns < high)
    inside &= (calls.correlation != ABSENT) & (calls.correlation != 0)
    total = int(inside.sum())
    answered = np.isin(calls.correlation[inside], trace.gpu.correlation)
    graphs = clip(captures(trace), low, high)
    in_capture = within(graphs, calls.start_ns[inside]) & ~answered
    captured = int(in_capture.sum())
    queued = _queued(trace, calls.start_ns[inside][~in_capture], answered[~in_capture])
    lost = total - int(answered.sum()) - captured - queued
    if captured > LOST_SHARE * total:
        mostly = captured > MOST_LOST * total or graphs.total > MOST_LOST * (high - low)
        yield _graph_capture("error" if mostly else "warning", captured, total, timeline.unit)
    if queued > LOST_SHARE * total:
        yield QualityIssue(
            "ends_busy",
            "info",
            f"The recording ends while the GPU is busy: {queued:,} of {total:,} launches had not run by then.",
        )
    if total and lost > LOST_SHARE * total:
        severe = lost > MOST_LOST * total
        before = int(np.sum(calls.start_ns[inside] < trace.gpu.start_ns.min()))
        where = f" {before:,} of them lie before the first GPU event." if before > 0.5 * lost else ""
        yield QualityIssue(
            "gpu_events_lost",
            "error" if severe else "warning",
            f"{lost:,} of {total:,} launches have no GPU event: the profiler lost them, so the GPU looks more idle"
            f" than it was.{where} Add warm-up {unit}s to the profiler's schedule, trace fewer {unit}s, or update"
            f" the driver.",
        )


def _graph_capture(severity: str, captured: int, launches: int, unit: Unit) -> QualityIssue:
    return QualityIssue(
        "graph_capture",
        severity,
        f"This records the capture of a CUDA graph: {captured:,} of {launches:,} launches went into the graph and did"
        f" not run, so the device's idle time says nothing of {unit.a}. Record {unit}s after the warm-up, which"
        " replay the graph.",
    )


def _queued(trace: Trace, begun: np.ndarray, answered: np.ndarray) -> int:
    """Launches after the last one that ran, if the devices worked up to the recording's end: these still wait in the
    queue."""
    if not answered.any():
        return 0
    ends = [int(table.end_ns.max()) for table in (trace.gpu, trace.calls, trace.ops) if len(table)]
    if max(ends) - ends[0] > END_OF_RECORDING * whole_ns(trace):
        return 0
    return int(np.sum(begun > begun[answered].max()))


def _work_without_launches(timeline: Timeline) -> Iterator[QualityIssue]:
    gpu, links = timeline.trace.gpu, timeline.links
    low, high = timeline.window
    inside = (gpu.start_ns < high) & (gpu.end_ns > low)
    lone = inside & (links.begun_ns == ABSENT)
    if inside.any() and lone.sum() > LOST_SHARE * inside.sum():
        yield QualityIssue(
            "gpu_events_unlinked",
            "info" if len(timeline.trace.calls) else "warning",
            f"{int(lone.sum()):,} of {int(inside.sum()):,} GPU events in the window have no launch in the recording"
            " (they were launched before, or calls were not recorded): their time counts, but their waits are"
            " unexplained.",
        )


def _cpu_ahead(timeline: Timeline) -> Iterator[QualityIssue]:
    unit = timeline.unit
    low, high = timeline.window
    for device in timeline.devices:
        name = f"GPU {device.device}" if len(timeline.devices) > 1 else "The GPU"
        if device.carry_out_ns > AHEAD_SHARE * (high - low):
            yield QualityIssue(
                "host_ahead",
                "warning",
                f"{name} finishes {_ms(device.carry_out_ns)} of this window's work after it ends:"
                f" the CPU (host) runs ahead, and {unit}s take longer on the GPU than on the CPU. Trace more {unit}s,"
                " or end each with torch.cuda.synchronize(), to time them.",
            )


def _work_far_away(timeline: Timeline) -> Iterator[QualityIssue]:
    """Work that the steps launched and that cannot have run at the times in the file."""
    unit = timeline.unit
    gpu, rows, (low, high) = timeline.trace.gpu, timeline.members, timeline.window
    far = int(np.sum((gpu.start_ns[rows] < low - LONGEST_WINDOW_NS) | (gpu.end_ns[rows] > high + LONGEST_WINDOW_NS)))
    if far:
        yield QualityIssue(
            "impossible_times",
            "error",
            f"Of the kernels and copies that the {unit}s launched {far:,} lie more than a day from them: times are"
            " wrong, so none can be believed. Record again.",
        )


def _little_work(timeline: Timeline) -> Iterator[QualityIssue]:
    """Too little GPU work to say anything about a step."""
    unit = timeline.unit
    gpu, rows, (low, high) = timeline.trace.gpu, timeline.members, timeline.window
    worked = int((gpu.end_ns - gpu.start_ns)[rows].clip(0).sum())
    few = len(rows) < FEWEST_EVENTS and worked < EMPTY_WINDOW_SHARE * (high - low)
    if few or worked < LEAST_WORK_NS:
        yield QualityIssue(
            "little_gpu_work",
            "error",
            f"The GPU works {worked / 1e3:,.3f} µs in {(high - low) / 1e6:,.2f} ms (kernels and copies: {len(rows):,}):"
            f" too little to know what {unit.a} waits for. Record whole {unit}s.",
        )


def _silent_end(trace: Trace, timeline: Timeline) -> Iterator[QualityIssue]:
    """A window whose larger part comes after the last thing that was recorded in it."""
    unit = timeline.unit
    low, high = timeline.window
    spans = ((trace.ops, trace.ops.kind == OP), *((t, slice(None)) for t in (trace.calls, trace.gpu, trace.frames)))
    ends = [table.end_ns[rows][table.start_ns[rows] < high] for table, rows in spans]
    last = max((int(found.max()) for found in ends if len(found)), default=low)
    if high - last > MOST_LOST * (high - low):
        yield QualityIssue(
            "silent_end",
            "error",
            f"Nothing was recorded in the last {(high - last) / 1e6:,.2f} of {(high - low) / 1e6:,.2f} ms: the range "
            f"that is called {unit.a} continues long after its work. Call prof.step() once {unit.a}, or name"
            f" the range that is {unit.a} with --step.",
        )


def _of_steps(timeline: Timeline) -> Iterator[QualityIssue]:
    unit = timeline.unit
    steps = timeline.steps
    if steps.source == "none":
        yield QualityIssue(
            "no_steps",
            "warning",
            f"No {unit}s were found, so the whole recording counts as one, start-up and all, and no fix is predicted"
            f" from it. {_how_to_mark(timeline)}, or name the range that is {unit.a} with --step.",
        )
    elif steps.source == "periodicity":
        yield QualityIssue(
            "steps_guessed",
            "info",
            f"{unit.capitalize()}s were inferred from the repetition of the kernel sequence: where {unit.a} begins is"
            f" a guess. {_how_to_mark(timeline)} to be sure.",
        )
    if steps.covered_ns < TOUCHING_SHARE * (timeline.window[1] - timeline.window[0]):
        yield QualityIssue(
            "steps_apart",
            "warning",
            f"The ranges that count as {unit}s cover {_ms(steps.covered_ns)} of the"
            f" {_ms(timeline.window[1] - timeline.window[0])} from the first to the last: shares are of all"
            f" that time, the {unit} time is of the ranges alone. Name the range that is a whole {unit} with --step.",
        )
    if steps.cut:
        yield QualityIssue(
            "cut_steps",
            "info",
            f"{steps.cut} incomplete {unit}{'s' if steps.cut > 1 else ''} at the edge of the recording"
            f" {'are' if steps.cut > 1 else 'is'} left out.",
        )


def _ms(ns: int) -> str:
    return f"{ns / 1e6:,.0f} ms" if ns >= 9.95e6 else f"{ns / 1e6:,.1f} ms"


def _start_up(timeline: Timeline) -> Iterator[QualityIssue]:
    """CPU time in which the program starts, in the window or in steps that were left out because of it."""
    unit = timeline.unit
    found, left_out = timeline.start_up, timeline.steps.starting
    if found.share >= START_UP_SHARE:
        parts = ", ".join(f"{name} {_ms(ns)}" for name, ns in found.parts)
        severe = found.share >= MUCH_START_UP
        yield QualityIssue(
            "start_up",
            "warning" if severe else "info",
            f"{100 * found.share:.0f} % of this window is the program's start ({parts}): it happens once"
            f"{', so no fix is predicted' if severe else ''}. Record later {unit}s, after a warm-up.",
        )
    if left_out:
        yield QualityIssue(
            "start_up_steps",
            "info",
            f"{left_out} {unit}{'s' if left_out > 1 else ''} at the beginning, in which the program loads or compiles"
            f" code, {'are' if left_out > 1 else 'is'} left out.",
        )


def _how_to_mark(timeline: Timeline) -> str:
    unit = timeline.unit
    if timeline.trace.reading.kind == "nsys":
        return f'Put an NVTX range named "step" around each {unit}'
    return f"Call prof.step() once {unit.a}"


def _of_cpu(trace: Trace, timeline: Timeline) -> Iterator[QualityIssue]:
    """What was not recorded of the CPU, and what recording it cost."""
    unit = timeline.unit
    ops = trace.ops
    low, high = timeline.window
    if not len(ops) and not len(trace.calls):
        yield QualityIssue(
            "no_host_events",
            "warning",
            "Only GPU events were recorded: why the GPU waits is not known. Record with ProfilerActivity.CPU too.",
        )
        return
    if not len(trace.calls) and len(trace.gpu):
        yield QualityIssue(
            "no_calls",
            "warning",
            "No CUDA/HIP calls were recorded: when work was launched is not known, nor if the device waited for it.",
        )
    spent = clip(profiler_overhead(trace), low, high).total
    if spent > OVERHEAD_SHARE * (high - low):
        yield QualityIssue(
            "profiler_overhead",
            "warning" if spent > OVERHEAD_SEVERE * (high - low) else "info",
            f"The profiler reports {_ms(spent)} of its own overhead in the window (buffers):"
            f" {unit}s with it are slower than the training's. Warm up longer, trace fewer {unit}s.",
        )
    if trace.reading.kind == "nsys":
        yield from _of_nsight(trace)
    elif len(ops) and not np.any((ops.dims != NO_TEXT) & (ops.kind == OP)):
        yield QualityIssue(
            "no_shapes",
            "info",
            "Shapes were not recorded (record_shapes=True): FLOPs and bytes of the kernels cannot be known.",
        )
    if lacks_inner_ops(timeline):
        yield QualityIssue(
            "inner_ops_left_out",
            "info",
            "This file lacks the nested ops that launch nothing. The profiler always records them, so something removed"
            f" them afterwards. What recording them cost is estimated from the remaining ops: the {unit} without the"
            " profiler is less exact.",
        )


def _of_nsight(trace: Trace) -> Iterator[QualityIssue]:
    """What an export of Nsight Systems does not contain, or contains of more than one process."""
    gpu = trace.gpu
    if trace.ops_from is not None:
        pass
    elif not has_ops(trace):
        yield QualityIssue(
            "no_ops",
            "info",
            "Nsight Systems records no ops and no shapes: FLOPs, bytes and the ops behind kernels are not known. A"
            " torch.profiler recording of the same program contains them (gpuprof trace without --nsys); given both,"
            " gpuprof diagnose takes the times from this one and the ops from that one.",
        )
    else:
        yield QualityIssue(
            "no_shapes", "info", "Nsight Systems records no types of tensors: FLOPs and bytes are not known."
        )
    whole = trace.rows_named(gpu.name, lambda text: text.startswith(WHOLE_GRAPH)) & (gpu.kind == KERNEL)
    if whole.any():
        yield QualityIssue(
            "graphs_whole",
            "info",
            f"{int(whole.sum()):,} CUDA graphs were recorded as a whole: their time counts as busy but"
            " unattributed. Record with --cuda-graph-trace=node to see the kernels.",
        )
    if trace.reading.other_processes:
        yield QualityIssue(
            "other_processes",
            "info",
            f"The file holds {len(trace.reading.other_processes) + 1} processes with GPU work; this is one of them."
            f" Another: gpuprof diagnose {trace.reading.other_processes[0]!r}",
        )
