"""The topmost tracks: phases of iterations, steps, phases of the main thread, and findings."""

from __future__ import annotations

import numpy as np

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.names import escape, shown
from gpuprof.report.page.views.iteration_tracks import iteration_tracks
from gpuprof.report.page.views.texts import Texts
from gpuprof.report.page.views.timeline_window import DrawnRows
from gpuprof.report.page.views.tracks import Track
from gpuprof.report.page.views.view_colours import BY_PHASE, number
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import I64, OP


def overview_tracks(diagnosis: Diagnosis, timeline: Timeline, part: DrawnRows, texts: Texts, group: int) -> list[Track]:
    """Those for which the recording has data."""
    of_iterations = diagnosis.iteration is not None and len(timeline.host.generation) > 0
    tracks = iteration_tracks(timeline, part, texts, group) if of_iterations else []
    tracks += [_steps(timeline, part, texts, group), _phases(timeline, part, texts, group)]
    tracks.append(_findings(diagnosis, timeline, part, texts, group))
    return [track for track in tracks if len(track.start_ns)]


def _steps(timeline: Timeline, part: DrawnRows, texts: Texts, group: int) -> Track:
    steps = timeline.steps
    rows = np.flatnonzero((steps.start_ns >= part.low_ns) & (steps.start_ns < part.high_ns))
    names = [texts.add(f"step {i + 1}" if steps.source != "none" else "recording") for i in rows.tolist()]
    nothing = np.full(len(rows), -1)
    # A range of a step may end slightly after the next begins: they are still one row.
    until = np.minimum(steps.end_ns, np.append(steps.start_ns[1:], steps.end_ns[-1:]))
    return Track(
        group, "steps", "steps", steps.start_ns[rows], until[rows], np.array(names, np.int64),
        np.where(rows % 2 == 0, number("host", "range"), number("work", "idle")), nothing,
    )  # fmt: skip


def _phases(timeline: Timeline, part: DrawnRows, texts: Texts, group: int) -> Track:
    start, end, phase = host_phase_spans(timeline)
    rows = np.flatnonzero((end > part.low_ns) & (start < part.high_ns))
    names = np.array([texts.add(name) for name in PHASES])
    return Track(
        group, "CPU phases", "phases", start[rows], end[rows], names[phase[rows]], BY_PHASE[phase[rows]],
        np.full(len(rows), -1),
    )  # fmt: skip


def host_phase_spans(timeline: Timeline) -> tuple[I64, I64, I64]:
    """(starts, ends, phases) of the main thread, over the whole window."""
    ops, (low, high) = timeline.trace.ops, timeline.window
    empty = np.empty(0, np.int64)
    mine = np.flatnonzero((ops.thread == timeline.main_thread) & (ops.start_ns < high) & (ops.end_ns > low))
    if not len(mine):
        return empty, empty, empty
    cuts = np.concatenate([[low], ops.start_ns[mine], ops.end_ns[mine], timeline.host.backward.start,
                           timeline.host.backward.end])  # fmt: skip
    cuts = np.unique(cuts[(cuts >= low) & (cuts < high)])
    thread = np.full(len(cuts), timeline.main_thread, np.int32)
    innermost = timeline.nesting.innermost(thread, cuts)
    phase = timeline.host.at(thread, cuts).astype(np.int64)
    # An annotation as long as the step says less than the phase that is known from the time.
    telling = innermost >= 0
    telling[telling] = (ops.kind[innermost[telling]] == OP) | timeline.host.named[innermost[telling]]
    phase[telling] = timeline.host.op[innermost[telling]]
    first = np.flatnonzero(np.diff(phase, prepend=-1))
    return cuts[first], np.append(cuts[first[1:]], high), phase[first]


def _findings(diagnosis: Diagnosis, timeline: Timeline, part: DrawnRows, texts: Texts, group: int) -> Track:
    """The places that are evidence of findings."""
    low = timeline.window[0]
    spans = [
        (low + e.start_ns, low + e.start_ns + (e.ns or 0), f"{number_}  {finding.title}", e.text)
        for number_, finding in enumerate(diagnosis.findings, 1)
        for e in finding.evidence
        if e.start_ns is not None and part.low_ns <= low + e.start_ns < part.high_ns
    ]
    columns = list(zip(*spans, strict=True)) or [(), (), (), ()]
    return Track(
        group, "findings", "findings",
        np.array(columns[0], np.int64), np.array(columns[1], np.int64),
        np.array([texts.add(escape(title)) for title in columns[2]], np.int64),
        np.full(len(spans), number("mark", "finding")),
        np.array([texts.add(shown(text, 400)) for text in columns[3]], np.int64),
    )  # fmt: skip
