"""Splits the time of one process into spans: marked phases, other work, and waiting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from gpuprof.calibration import iterations as calibrated
from gpuprof.diagnosis.roles.model import WAITING, RoleProcess, Span
from gpuprof.record.phases.phase_names import BACKWARD, FORWARD, IDLE, OPTIMIZER, OTHER, TRAINING
from gpuprof.timeline.intervals import Intervals, clip, complement, join, union
from gpuprof.timeline.iteration_phases import PhaseSpan, innermost, phase_spans
from gpuprof.tracefile.nsys.address import split_process
from gpuprof.tracefile.run_folder.phase_logs import Mark, PhaseLog
from gpuprof.tracefile.trace import Trace
from gpuprof.units import Assumed, WholeNs

BREATH_NS: Assumed[WholeNs] = 1_000_000
"""In a recording, a process counts as working for this long after each op or kernel."""
_OF_TRAINING = (FORWARD, BACKWARD, OPTIMIZER, TRAINING)


def of_phase_log(log: PhaseLog, offset_ns: int) -> RoleProcess:
    """The process of a phase log. Between marks it waits if its thread used hardly any CPU time, otherwise it works.

    offset_ns: added to its clock. Of several threads the one with most marks is followed; phases that others mark while
    it waits also count as work.
    """
    threads: dict[int, list[Mark]] = {}
    for mark in log.marks:
        threads.setdefault(mark.thread, []).append(mark)
    own, *others = sorted(threads.values(), key=len, reverse=True)
    spans = _exclusive(own)
    for marks in others:
        spans = _fill_waits(spans, _exclusive(marks))
    moved = tuple(Span(one.phase, one.start_ns + offset_ns, one.end_ns + offset_ns) for one in _without_gaps(spans))
    clock = f"boot {log.boot}" if log.boot else f"host {log.host}"
    return RoleProcess(log.path, log.program, clock, moved)


def of_trace(trace: Trace, busy: Intervals, working: Intervals, path: str) -> RoleProcess:
    """The process of a recording with marked phases; without spans if it has no marks. Between them it waits while
    neither a GPU nor a CPU op is running.

    busy: when a GPU works. working: when the CPU works. Processes of one Nsight Systems export share its clock; others
    use the time of day, or the clock of their own file.
    """
    base_ns = trace.meta.base_time_ns
    clock = "time of day" if base_ns is not None else f"that of {split_process(Path(path))[0]}"
    found = [Span(_phase(one.phase), one.start_ns, one.end_ns) for one in phase_spans(trace, training=True)]
    if not found:
        return RoleProcess(path, None, clock, ())
    low, high = min(one.start_ns for one in found), max(one.end_ns for one in found)
    marks = union(
        np.array([one.start_ns for one in found], np.int64), np.array([one.end_ns for one in found], np.int64)
    )
    free = complement(marks, low, high)
    both = join(busy, working)
    works = union(both.start, both.end + BREATH_NS)  # between ops the CPU runs the code that calls them
    for start, end in zip(free.start.tolist(), free.end.tolist(), strict=True):
        inside = clip(works, start, end)
        for phase, part in ((OTHER, inside), (WAITING, complement(inside, start, end))):
            found += [Span(phase, *ends) for ends in zip(part.start.tolist(), part.end.tolist(), strict=True)]
    found.sort(key=lambda one: one.start_ns)
    base_ns = base_ns or 0
    moved = [Span(one.phase, one.start_ns + base_ns, one.end_ns + base_ns) for one in found]
    return RoleProcess(path, None, clock, tuple(_joined(moved)))


def _exclusive(marks: Sequence[Mark]) -> list[Span]:
    """Spans without overlap: the innermost mark gets the time; time without a mark is waiting or other work."""
    ordered = sorted(marks, key=lambda one: (one.begin_ns, -one.end_ns))
    marked = innermost(PhaseSpan(one.phase, one.begin_ns, one.end_ns) for one in ordered)
    spans = [*(Span(_phase(one.phase), one.start_ns, one.end_ns) for one in marked), *_between(ordered)]
    return list(_joined(sorted(spans, key=lambda one: one.start_ns)))


def _between(marks: Iterable[Mark]) -> Iterator[Span]:
    """Spans without an open mark: waiting if the thread used hardly any CPU time, else other work. marks: in order of
    begin."""
    last: Mark | None = None
    for mark in marks:
        if last is not None and mark.begin_ns > last.end_ns:
            used = max(mark.cpu_begin_ns - last.cpu_end_ns, 0) / (mark.begin_ns - last.end_ns)
            yield Span(WAITING if used < calibrated.WAITS.value else OTHER, last.end_ns, mark.begin_ns)
        if mark.end_ns > (mark.begin_ns if last is None else last.end_ns):
            last = mark


def _phase(phase: str) -> str:
    """Parts of training are one phase, and a process that says it idles waits."""
    if phase == IDLE:
        return WAITING
    return TRAINING if phase in _OF_TRAINING else phase


def _joined(spans: Iterable[Span]) -> Iterable[Span]:
    """Merges consecutive spans of the same phase."""
    last: Span | None = None
    for one in spans:
        if last is not None and last.phase == one.phase and last.end_ns == one.start_ns:
            last = Span(last.phase, last.start_ns, one.end_ns)
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


def _without_gaps(spans: Iterable[Span]) -> Iterable[Span]:
    """The spans, with gaps filled by waiting."""

    def filled() -> Iterable[Span]:
        at = 0
        for one in spans:
            if at and one.start_ns > at:
                yield Span(WAITING, at, one.start_ns)
            yield one
            at = one.end_ns

    return _joined(filled())


def _fill_waits(spans: list[Span], others: Sequence[Span]) -> list[Span]:
    """The spans, with another thread's spans inserted where this one waits, and before and after it."""
    if not spans:
        return list(others)
    found: list[Span] = [one for one in others if one.end_ns <= spans[0].start_ns]
    work = [one for one in others if one.phase != WAITING]
    for one in spans:
        if one.phase != WAITING:
            found.append(one)
            continue
        at = one.start_ns
        for other in work:
            start, end = max(other.start_ns, at), min(other.end_ns, one.end_ns)
            if end <= start:
                continue
            if start > at:
                found.append(Span(WAITING, at, start))
            found.append(Span(other.phase, start, end))
            at = end
        if at < one.end_ns:
            found.append(Span(WAITING, at, one.end_ns))
    found += [one for one in others if one.start_ns >= spans[-1].end_ns]
    return list(_joined(found))
