"""The tracks of host threads: ops with their calls, and Python frames where the recording has stacks."""

from __future__ import annotations

import numpy as np

from gpuprof.diagnosis.idle.gaps import calls_by_cause
from gpuprof.report.names import shown
from gpuprof.report.page.views.texts import Texts, coded
from gpuprof.report.page.views.timeline_window import DrawnRows
from gpuprof.report.page.views.tracks import Track
from gpuprof.report.page.views.view_colours import BY_PHASE, number
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import ANNOTATION, I64, Mask, Thread
from gpuprof.units import Cells, Convention, Threads

SHAPES_WIDTH: Convention[Cells] = 160
"""Characters of an op's shapes."""
MOST_THREADS: Convention[Threads] = 24
"""The busiest threads are drawn, at most this many; a data loader may have hundreds that do nothing."""


def threads_of(timeline: Timeline, part: DrawnRows) -> tuple[list[int], int]:
    """(threads to draw, the main one first, then by number of events; how many are left out)."""
    trace = timeline.trace
    parts = ((trace.ops, part.ops), (trace.calls, part.calls), (trace.frames, part.frames))
    used = np.concatenate([table.thread[rows] for table, rows in parts])
    threads, counts = np.unique(used, return_counts=True)
    order = sorted(
        zip(threads.tolist(), counts.tolist(), strict=True), key=lambda t: (t[0] != timeline.main_thread, -t[1])
    )
    return [thread for thread, _ in order[:MOST_THREADS]], max(len(order) - MOST_THREADS, 0)


def thread_name(timeline: Timeline, thread: int) -> str:
    """A thread's purpose, where it is known, and its name in the recording, which evidence uses."""
    known: Thread = timeline.trace.threads[thread]
    name = shown(known.name or known.thread, 40)
    if thread == timeline.main_thread:
        return f"main thread · {name}"
    return f"autograd · {name}" if thread in timeline.host.autograd else name


def host_tracks(
    timeline: Timeline, part: DrawnRows, texts: Texts, thread: int, group: int, is_open: bool
) -> list[Track]:
    """Ops and calls of one thread as one track, its frames as another."""
    trace = timeline.trace
    ops = part.ops[trace.ops.thread[part.ops] == thread]
    calls = part.calls[trace.calls.thread[part.calls] == thread]
    frames = part.frames[trace.frames.thread[part.frames] == thread]
    tracks = []
    if len(ops) or len(calls):
        tracks.append(_ops(timeline, texts, ops, calls, group, is_open))
    if len(frames):
        tracks.append(_frames(timeline, texts, frames, group))
    return tracks


def step_ranges(timeline: Timeline) -> Mask:
    """Mask of the ops that are ranges of steps."""
    ops = timeline.trace.ops
    return (ops.kind == ANNOTATION) & timeline.trace.rows_named(ops.name, timeline.steps.are)


def drawn_until(timeline: Timeline, ops: I64) -> I64:
    """Where ops of one thread end in the timeline, ns: ranges of a step, and those that begin in it, end when the next
    step begins at the latest. The profiler steps in hooks, so they overlap by some µs, and everything in a step would
    be drawn a row lower than in the step before."""
    table = timeline.trace.ops
    start, until = table.start_ns[ops], table.end_ns[ops].copy()
    steps = np.sort(start[step_ranges(timeline)[ops]])
    after = np.searchsorted(steps, start, side="right")
    # Neither ranges that contain a whole step, nor those that began before all steps.
    cut = (table.kind[ops] == ANNOTATION) & (after > 0) & (after < len(steps))
    ends = steps[np.minimum(after[cut], len(steps) - 1)] if len(steps) else until[cut]
    following = np.append(steps, np.iinfo(np.int64).max)[np.minimum(after[cut] + 1, len(steps))]
    until[cut] = np.where(until[cut] < following, np.minimum(until[cut], ends), until[cut])
    return until


def _frames(timeline: Timeline, texts: Texts, rows: I64, group: int) -> Track:
    """Collapsed at first: stacks are deep, and most people look for the ops."""
    frames = timeline.trace.frames
    paint, nothing = np.full(len(rows), number("host", "python")), np.full(len(rows), -1)
    text = texts.names(frames.name[rows])
    return Track(
        group, "Python", "frames", frames.start_ns[rows], frames.end_ns[rows], text, paint, nothing, open=False
    )


def _ops(timeline: Timeline, texts: Texts, ops: I64, calls: I64, group: int, is_open: bool) -> Track:
    trace = timeline.trace
    ranges = trace.ops.kind[ops] == ANNOTATION
    colour = np.where(ranges, number("host", "range"), BY_PHASE[timeline.host.op[ops]])
    return Track(
        group=group,
        name="ops, calls",
        kind="ops",
        start_ns=np.concatenate([trace.ops.start_ns[ops], trace.calls.start_ns[calls]]),
        end_ns=np.concatenate([drawn_until(timeline, ops), trace.calls.end_ns[calls]]),
        text=np.concatenate([texts.names(trace.ops.name[ops]), texts.names(trace.calls.name[calls])]),
        paint=np.concatenate([colour, call_paints(timeline)[calls]]),
        detail=np.concatenate([_op_details(timeline, ops, texts), np.full(len(calls), -1)]),
        table="calls",
        row=np.concatenate([np.full(len(ops), -1), calls]),
        open=is_open,
    )


def call_paints(timeline: Timeline) -> I64:
    """The paint of every call of the trace."""
    transfer, sync, allocator = calls_by_cause(timeline)
    paints = np.full(len(transfer), number("host", "launch"))
    paints[allocator] = number("host", "allocator")
    paints[transfer] = number("host", "copy")
    paints[sync] = number("host", "sync")
    return paints


def _op_details(timeline: Timeline, rows: I64, texts: Texts) -> I64:
    """`backward · [[128, 2048], [2048]] BFloat16`: its phase and its arguments."""
    if not len(rows):
        return np.empty(0, np.int64)
    trace, phase = timeline.trace, timeline.host.op[rows]
    ops = trace.ops
    first, code = coded(phase, ops.dims[rows], ops.types[rows])
    made = []
    for i in first.tolist():
        given = [trace.text(int(column[rows[i]])) for column in (ops.dims, ops.types)]
        made.append(texts.add(" · ".join([PHASES[phase[i]], *(shown(text, SHAPES_WIDTH) for text in given if text)])))
    return np.array(made, np.int64)[code]
