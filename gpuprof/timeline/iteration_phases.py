"""Phases of iterations in a recording, by the ranges that mark them, and what the recording left out of them.

The recorder's own ranges are named `phase: generation`; those of some frameworks are known. Time belongs to the
innermost range at each moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from gpuprof.record.phases.phase_names import (
    BACKWARD,
    GENERATION,
    OPTIMIZER,
    RANGE,
    TIMED,
    TRAINING,
    UNRECORDED_RANGE,
    WHOLE,
)
from gpuprof.timeline.intervals import Cover, Intervals, clip, complement, join, union
from gpuprof.timeline.nesting import busiest_thread
from gpuprof.tracefile.trace import ANNOTATION, I64, Trace
from gpuprof.tracefile.training_logs.frameworks import OWN_RANGES, RANGES
from gpuprof.units import Assumed, Names


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A stretch of CPU wall time of one phase, on the trace's clock."""

    phase: str
    start_ns: int
    end_ns: int


def phase_of(name: str) -> str | None:
    """The phase marked by a range of this name."""
    if name in (BACKWARD, OPTIMIZER):  # the recorder's own ranges of any training
        return name
    phase = name[len(RANGE) :] if name.startswith(RANGE) else None
    return phase if phase in TIMED or phase == TRAINING else None


FEWEST_NAMES: Assumed[Names] = 3
"""Fewest range names of one framework, generation among them, for a recording to count as that framework's: a single
name may be anything, except those in OWN_RANGES."""


def _framework(names: set[str]) -> dict[str, str]:
    """Name of a range → its phase, for the framework that marked the recording; empty if none did."""
    for table in RANGES.values():
        found = names & table.keys()
        several = len(found) >= FEWEST_NAMES and any(table[name] == GENERATION for name in found)
        if several or found & OWN_RANGES:
            return table
    return {}


def is_pause(name: str) -> bool:
    """Whether a range of this name covers a part that the recorder left out."""
    return name.startswith(UNRECORDED_RANGE)


def phase_spans(trace: Trace, training: bool = False) -> tuple[PhaseSpan, ...]:
    """Spans of the marked phases, in order and without overlap. Time outside all ranges belongs to no phase. training:
    whether phases of training are included, whose parts (forward, backward, optimizer) are found by other means.
    """
    ops = trace.ops
    marks = np.unique(ops.name[ops.kind == ANNOTATION]).tolist()
    others = _framework({trace.strings[i] for i in marks})
    names = {i: phase for i in marks if (phase := phase_of(trace.strings[i]) or others.get(trace.strings[i]))}
    if set(names.values()) <= {BACKWARD, OPTIMIZER}:
        return ()
    rows = np.flatnonzero((ops.kind == ANNOTATION) & np.isin(ops.name, list(names)))
    rows = rows[ops.thread[rows] == busiest_thread(ops.thread[rows], ops.start_ns[rows])]
    rows = rows[np.lexsort((-ops.end_ns[rows], ops.start_ns[rows]))]
    marked = (
        PhaseSpan(names[int(ops.name[row])], int(ops.start_ns[row]), int(ops.end_ns[row])) for row in rows.tolist()
    )
    return tuple(one for one in innermost(marked) if training or one.phase != TRAINING)


def innermost(marks: Iterable[PhaseSpan]) -> Iterator[PhaseSpan]:
    """Spans without overlap: time belongs to the innermost mark, except that validation and saving keep all that they
    contain.

    marks: in order of their begin, of two that begin together the longer one first.
    """
    stack: list[tuple[str, int]] = []
    at = 0
    for mark in marks:
        while stack and stack[-1][1] <= mark.start_ns:
            phase, end = stack.pop()
            if end > at:
                yield PhaseSpan(phase, at, end)
            at = max(at, end)
        if stack and mark.start_ns > at:
            yield PhaseSpan(stack[-1][0], at, mark.start_ns)
        at = mark.start_ns
        stack.append((stack[-1][0] if stack and stack[-1][0] in WHOLE else mark.phase, mark.end_ns))
    while stack:
        phase, end = stack.pop()
        if end > at:
            yield PhaseSpan(phase, at, end)
        at = max(at, end)


def unrecorded(trace: Trace) -> Intervals:
    """CPU wall time of generation that the recorder left out of the window."""
    ops = trace.ops
    rows = np.flatnonzero(trace.rows_named(ops.name, is_pause))
    return union(ops.start_ns[rows], ops.end_ns[rows])


def times_in_window(
    spans: tuple[PhaseSpan, ...], left_out: Intervals, busy: Intervals, window: tuple[int, int]
) -> dict[str, tuple[int, int]]:
    """Phase → (CPU wall time, part of it in which a device works), ns, within the window and without what was left
    out."""
    low, high = window
    hidden, works = clip(left_out, low, high), Cover(busy)
    found: dict[str, tuple[int, int]] = {}
    for phase in dict.fromkeys(span.phase for span in spans):
        mine = [span for span in spans if span.phase == phase]
        starts: I64 = np.array([span.start_ns for span in mine], np.int64)
        ends: I64 = np.array([span.end_ns for span in mine], np.int64)
        # Own time without what is hidden: the complement of all that is one of the two.
        others = complement(clip(union(starts, ends), low, high), low, high)
        own = complement(join(others, hidden), low, high)
        found[phase] = (own.total, int(works.between(own.start, own.end).sum()))
    return {phase: times for phase, times in found.items() if times[0]}
