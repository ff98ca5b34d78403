"""The tracks of an RL training: the phases of its iterations, and the decode steps in them."""

from __future__ import annotations

import numpy as np

from gpuprof.record.phases.phase_names import GENERATION, TRAINING, TRAINING_PARTS
from gpuprof.report.page.views.texts import Texts
from gpuprof.report.page.views.timeline_window import DrawnRows
from gpuprof.report.page.views.tracks import Track
from gpuprof.report.page.views.view_colours import ITERATION, number
from gpuprof.timeline.intervals import clip
from gpuprof.timeline.iteration_phases import PhaseSpan, phase_spans, unrecorded
from gpuprof.timeline.timeline import Timeline
from gpuprof.timeline.workload import single_token_embeddings
from gpuprof.tracefile.trace import I64


def iteration_tracks(timeline: Timeline, part: DrawnRows, texts: Texts, group: int) -> list[Track]:
    """The phases as the program marked them, and the decode steps, collapsed at first; none where nothing is marked."""
    spans = [span for span in phase_spans(timeline.trace) if span.end_ns > part.low_ns and span.start_ns < part.high_ns]
    if not spans:
        return []
    phases = Track(
        group, "iteration", "phases",
        np.array([span.start_ns for span in spans], np.int64), np.array([span.end_ns for span in spans], np.int64),
        np.array([texts.add(span.phase) for span in spans], np.int64),
        np.array([_paint(span.phase) for span in spans], np.int64), np.full(len(spans), -1),
    )  # fmt: skip
    return [phases, _decoding(timeline, spans, part, texts, group)]


def _decoding(timeline: Timeline, spans: list[PhaseSpan], part: DrawnRows, texts: Texts, group: int) -> Track:
    """Decode steps, and the decoding that was not recorded."""
    hidden = clip(unrecorded(timeline.trace), part.low_ns, part.high_ns)
    start, end = decode_steps(timeline, spans)
    count = len(start) + len(hidden)
    names = [*(texts.add("decode step") for _ in range(min(len(start), 1))), texts.add("not recorded: decoding")]
    text = np.concatenate([np.full(len(start), names[0]), np.full(len(hidden), names[-1])])
    paint = [np.full(len(start), number(ITERATION, GENERATION)), np.full(len(hidden), number("work", "idle"))]
    return Track(
        group, "decode steps", "phases", np.concatenate([start, hidden.start]), np.concatenate([end, hidden.end]),
        text.astype(np.int64), np.concatenate(paint), np.full(count, -1), open=False,
    )  # fmt: skip


def decode_steps(timeline: Timeline, spans: list[PhaseSpan]) -> tuple[I64, I64]:
    """(starts, ends) of the recorded decode steps: from a forward pass of one token per sequence to the next, or to the
    end of the generation without a break."""
    begun = single_token_embeddings(timeline.trace)
    left_out = unrecorded(timeline.trace)
    starts, ends = [], []
    for span in spans:
        if span.phase != GENERATION:
            continue
        inside = begun[(begun >= span.start_ns) & (begun < span.end_ns)]
        breaks = left_out.start[(left_out.start > span.start_ns) & (left_out.start < span.end_ns)]
        until = np.sort(np.concatenate([inside, breaks, [span.end_ns]]))
        starts.append(inside)
        ends.append(until[np.searchsorted(until, inside, side="right")])
    if not starts:
        nothing = np.empty(0, np.int64)
        return nothing, nothing
    return np.concatenate(starts).astype(np.int64), np.concatenate(ends).astype(np.int64)


def _paint(phase: str) -> int:
    return number(ITERATION, TRAINING if phase in TRAINING_PARTS else phase)
