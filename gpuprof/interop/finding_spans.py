"""gpuprof's results for a recording, as spans on lanes: steps, phases, findings, and the gaps of every GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuprof.diagnosis.idle.gaps import CAUSES, GapColumns
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Finding
from gpuprof.interop.drawn_lanes import Lane, Lanes
from gpuprof.interop.trace_events import Field, JsonTexts, Spans, Texts, constant, json_texts
from gpuprof.timeline.intervals import Cover
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import I64, NO_TEXT, OP, U8
from gpuprof.units import Convention, Points

OURS = "gpuprof"
"""Key of the group of lanes."""
BUSY_BINS: Convention[Points] = 1000
"""Points of a GPU's utilization over the window."""


def found_lanes(diagnosis: Diagnosis, lanes: Lanes, texts: JsonTexts) -> dict[str, Spans]:
    """The spans of gpuprof's results; adds their lanes."""
    timeline, columns = diagnosis.tables.timeline, diagnosis.tables.columns
    lanes.groups[OURS] = "gpuprof"
    found = {
        "steps": _steps(timeline, lanes),
        "phases": _phases(timeline, lanes),
        "findings": _findings(diagnosis.findings, timeline.window, lanes),
        "gaps": _gaps(timeline, columns, lanes, texts),
    }
    return {name: spans for name, spans in found.items() if len(spans)}


def busy_share(timeline: Timeline) -> dict[int, tuple[I64, I64]]:
    """For each device the start of every bin of the window, and how busy the device is in it, in permille."""
    low, high = timeline.window
    edges = np.unique(low + (high - low) * np.arange(BUSY_BINS + 1, dtype=object) // BUSY_BINS).astype(np.int64)
    found = {}
    for device in timeline.devices:
        busy = Cover(device.busy).between(edges[:-1], edges[1:])
        found[device.device] = (edges[:-1], 1000 * busy // np.diff(edges))
    return found


def main_phases(timeline: Timeline) -> tuple[I64, I64, U8]:
    """The phases of the main thread in the window: (start, end, index into PHASES)."""
    low, high = timeline.window
    ops, host, main = timeline.trace.ops, timeline.host, timeline.main_thread
    rows = np.flatnonzero((ops.thread == main) & (ops.end_ns > low) & (ops.start_ns < high))
    marks = [ops.start_ns[rows], ops.end_ns[rows], timeline.steps.start_ns, timeline.steps.end_ns]
    marks += [host.backward.start, host.backward.end, host.optimizer.start, host.optimizer.end]
    edges = np.unique(np.concatenate([*marks, [low, high]]).clip(low, high))
    start, end = edges[:-1], edges[1:]
    thread = np.full(len(start), main, np.int32)
    phase = host.at(thread, start)
    inside = timeline.nesting.innermost(thread, start)
    # A span as wide as the step (ProfilerStep itself) is not informative.
    telling = np.flatnonzero(inside >= 0)
    telling = telling[(ops.kind[inside[telling]] == OP) | host.named[inside[telling]]]
    phase[telling] = host.op[inside[telling]]
    first = np.flatnonzero(np.diff(phase, prepend=255 if len(phase) else []))
    return start[first], np.append(start[first[1:]], end[-1:]), phase[first]


def _steps(timeline: Timeline, lanes: Lanes) -> Spans:
    steps = timeline.steps
    lane = lanes.add(Lane(OURS, "steps"))
    size = len(steps.start_ns)
    name = json_texts(f"step {i + 1}" for i in range(size))
    return _ours(lane, steps.start_ns, steps.end_ns, name, "step")


def _phases(timeline: Timeline, lanes: Lanes) -> Spans:
    lane = lanes.add(Lane(OURS, "phases of the main thread"))
    start, end, phase = main_phases(timeline)
    return _ours(lane, start, end, json_texts(PHASES)[phase], "phase")


def _findings(findings: Sequence[Finding], window: tuple[int, int], lanes: Lanes) -> Spans:
    """Every place that findings name as evidence; a finding that names none spans the whole window."""
    low, high = window
    lane = lanes.add(Lane(OURS, "findings"))
    rows = []
    for finding in findings:
        sums = "; ".join(e.text for e in finding.evidence if e.start_ns is None)
        places = [(low + e.start_ns, e.ns or 0, e.text, e.where) for e in finding.evidence if e.start_ns is not None]
        for start, ns, text, where in places or [(low, high - low, "the whole window", None)]:
            rows.append((start, start + max(ns, 0), finding, (sums, text, where)))
    fields = (
        Field("finding", json_texts(f.id for _, _, f, _ in rows)),
        Field("severity", json_texts(f.severity for _, _, f, _ in rows)),
        Field("because", json_texts(words[0] for *_, words in rows)),
        Field("place", json_texts(words[1] for *_, words in rows)),
        Field("where", json_texts(words[2] or "" for *_, words in rows)),
        Field("fix", json_texts(f.fix for _, _, f, _ in rows)),
        Field("step with the fix (ns)", np.array([round(f.step_ns.expected) for _, _, f, _ in rows], np.int64)),
        Field("speedup", np.array([round(f.speedup.expected, 3) for _, _, f, _ in rows], np.float64)),
    )
    start = np.array([row[0] for row in rows], np.int64)
    end = np.array([row[1] for row in rows], np.int64)
    return _ours(lane, start, end, json_texts(f.title for _, _, f, _ in rows), "finding", fields)


def _gaps(timeline: Timeline, gaps: GapColumns, lanes: Lanes, texts: JsonTexts) -> Spans:
    ops = timeline.trace.ops
    numbers = {d: lanes.add(Lane(OURS, f"GPU {d} idle, by cause")) for d in np.unique(gaps.device).tolist()}
    lane = np.array([numbers[d] for d in sorted(numbers)], np.int64)[np.searchsorted(sorted(numbers), gaps.device)]
    has_op = gaps.op >= 0
    op = np.full(len(has_op), NO_TEXT, np.int32)
    op[has_op] = ops.name[gaps.op[has_op]]
    fields = [
        Field("phase", json_texts(PHASES)[gaps.phase]),
        Field("op", texts.plain(op), op >= 0),
        Field("module", texts.plain(gaps.module), gaps.module >= 0),
        Field("frame", texts.plain(gaps.frame), gaps.frame >= 0),
    ]
    fields += [Field(f"{cause} (ns)", gaps.by_cause[:, i], gaps.by_cause[:, i] > 0) for i, cause in enumerate(CAUSES)]
    spans = _ours(0, gaps.start_ns, gaps.end_ns, json_texts(CAUSES)[gaps.cause], "gap", tuple(fields))
    return Spans(lane, spans.start_ns, spans.end_ns, spans.name, spans.category, spans.fields)


def _ours(
    lane: int, start_ns: I64, end_ns: I64, name: Texts, kind: str, fields: tuple[Field, ...] = ()
) -> Spans:  # fmt: skip
    size = len(start_ns)
    return Spans(np.full(size, lane), start_ns, end_ns, name, constant(f"gpuprof_{kind}", size), fields)
