"""Which part of a recording the timeline shows: all of it, or the number of whole steps that a browser can draw at
once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.diagnosis.recorded.representative_steps import representative
from gpuprof.timeline.steps import LONGEST_WINDOW_NS
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import ANNOTATION, I64, Trace
from gpuprof.units import Events, Measured

MOST_EVENTS: Measured[Events] = 1_000_000
"""A page with this number opens in 1.5 s and still scrolls smoothly (benchmarks/report.py)."""


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """Rows of the recording's tables that are drawn, and the time that they cover on the recording's own clock."""

    low_ns: int
    high_ns: int
    ops: I64
    calls: I64
    gpu: I64
    frames: I64
    note: str
    """What is not drawn; empty where everything is."""

    @property
    def events(self) -> int:
        return len(self.ops) + len(self.calls) + len(self.gpu) + len(self.frames)


def choose(timeline: Timeline, most: int = MOST_EVENTS) -> DrawnRows:
    """At most about `most` events: the whole recording, else representative steps, else those without Python frames,
    else only the longer host events. GPU events are never left out.
    """
    trace = timeline.trace
    whole = _within(trace, *_extent(timeline), "")
    if whole.events <= most:
        return whole
    total = len(timeline.steps.start_ns)
    host = len(whole.ops) + len(whole.calls) + len(whole.gpu)
    chosen = representative(timeline, int(most * host / whole.events))
    low = chosen.window[0]
    part = _within(trace, low, _finished(chosen), _steps_note(len(chosen.steps.start_ns), total))
    if part.events <= most:
        return part
    note = f"{part.note} Python frames are left out.".strip() if len(part.frames) else part.note
    part = DrawnRows(part.low_ns, part.high_ns, part.ops, part.calls, part.gpu, part.frames[:0], note)
    if part.events <= most:
        return part
    return _longest(trace, part, most)


def _steps_note(shown: int, total: int) -> str:
    if shown >= total:
        return ""
    steps = f"{shown} of {total} steps" if shown > 1 else f"one of {total} steps"
    return f"The timeline shows {steps}, those closest to the median; sums and tables cover all steps."


def near(timeline: Timeline) -> tuple[int, int]:
    """The times that one recording can contain: those further from the window than the longest recording lasts are
    wrong, and no page can hold them."""
    low, high = timeline.window
    return low - LONGEST_WINDOW_NS, high + LONGEST_WINDOW_NS


def _extent(timeline: Timeline) -> tuple[int, int]:
    """From the first start to the last end."""
    trace, (least, most) = timeline.trace, near(timeline)
    tables = [t for t in (trace.ops, trace.calls, trace.gpu, trace.frames) if len(t)]
    low = min((int(t.start_ns.min()) for t in tables), default=0)
    # Stacks and ranges that were open when the profiler stopped last until it had stopped, which is not part of the
    # training.
    open_ended = trace.ops.kind == ANNOTATION
    ends = [trace.frames.start_ns, np.where(open_ended, trace.ops.start_ns, trace.ops.end_ns)]
    ends += [trace.calls.end_ns, trace.gpu.end_ns]
    last = max((int(each.max()) for each in ends if len(each)), default=low)
    return max(low, least), min(max(last, timeline.window[1]) + 1, most)


def _finished(timeline: Timeline) -> int:
    """When the last work that the window launched ends."""
    ends = timeline.trace.gpu.end_ns[timeline.members]
    return min(max(timeline.window[1], int(ends.max()) if len(ends) else 0), near(timeline)[1])


def _within(trace: Trace, low: int, high: int, note: str) -> DrawnRows:
    """What begins in [low, high)."""
    tables = (trace.ops, trace.calls, trace.gpu, trace.frames)
    ops, calls, gpu, frames = (np.flatnonzero((t.start_ns >= low) & (t.start_ns < high)) for t in tables)
    return DrawnRows(low, high, ops, calls, gpu, frames, note)


def _longest(trace: Trace, part: DrawnRows, most: int) -> DrawnRows:
    """Leaves out the shortest host events."""
    room = max(most - len(part.gpu), most // 10)
    of_ops = (trace.ops.end_ns - trace.ops.start_ns)[part.ops]
    of_calls = (trace.calls.end_ns - trace.calls.start_ns)[part.calls]
    ns = np.concatenate([of_ops, of_calls])
    if len(ns) <= room:
        return part
    least = int(np.partition(ns, len(ns) - room)[len(ns) - room])
    ops, calls = part.ops[of_ops >= least], part.calls[of_calls >= least]
    left_out = len(ns) - len(ops) - len(calls)
    note = f"{part.note} {left_out:,} host events shorter than {least / 1e3:,.1f} µs are left out.".strip()
    return DrawnRows(part.low_ns, part.high_ns, ops, calls, part.gpu, part.frames, note)
