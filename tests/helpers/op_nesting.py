"""Ops of a trace by plain sweeps: which op contains which, which op launched each kernel, and whether a pairing kept
both relations."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from gpuprof.timeline.pairing import Pairing
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import KERNEL, OP, Trace


def spans(trace: Trace) -> list[tuple[int, int, int, str, int]]:
    """(thread, start, end, name, External id) of every op, outer ones first."""
    ops = trace.ops
    rows = np.flatnonzero(ops.kind == OP)
    columns = (ops.thread, ops.start_ns, ops.end_ns, ops.name, ops.external)
    found = zip(*(column[rows].tolist() for column in columns), strict=True)
    named = [(thread, start, end, trace.strings[name], number) for thread, start, end, name, number in found]
    return sorted(named, key=lambda span: (span[0], span[1], -span[2], span[4]))


def parents(ops: list[tuple[int, int, int, str, int]]) -> dict[int, int]:
    """External id of each op → that of the op around it, by a stack per thread."""
    found, stack, thread = {}, [], None
    for on, start, end, _, number in ops:
        if on != thread:
            stack, thread = [], on
        while stack and stack[-1][0] <= start:
            stack.pop()
        if stack:
            found[number] = stack[-1][1]
        stack.append((end, number))
    return found


def innermost(timeline: Timeline, trace: Trace) -> dict[int, str | None]:
    """Row of each launched kernel → the name of the innermost op around its launch, by a sweep over ops and calls."""
    call = timeline.links.call
    wanted = defaultdict(list)
    for row in np.flatnonzero((call >= 0) & (trace.gpu.kind == KERNEL)).tolist():
        wanted[int(trace.calls.thread[call[row]])].append((int(trace.calls.start_ns[call[row]]), row))
    by_thread = defaultdict(list)
    for op in spans(trace):
        by_thread[op[0]].append(op)
    found: dict[int, str | None] = {}
    for thread, launches in wanted.items():
        ops, stack, k = by_thread[thread], [], 0
        for moment, row in sorted(launches):
            while k < len(ops) and ops[k][1] <= moment:
                while stack and stack[-1][2] <= ops[k][1]:
                    stack.pop()
                stack.append(ops[k])
                k += 1
            while stack and stack[-1][2] <= moment:
                stack.pop()
            found[row] = stack[-1][3] if stack else None
    return found


def steps_of(timeline: Timeline) -> list[list[tuple[str, str | None]]]:
    """For each step its kernels in launch order, each with the name of the op that launched it."""
    trace, links = timeline.trace, timeline.links
    names = innermost(timeline, trace)
    found = []
    for start, end in zip(timeline.steps.start_ns.tolist(), timeline.steps.end_ns.tolist(), strict=True):
        rows = [row for row in names if start <= links.begun_ns[row] < end]
        rows.sort(key=lambda row: (links.begun_ns[row], trace.gpu.start_ns[row]))
        found.append([(trace.strings[trace.gpu.name[row]], names[row]) for row in rows])
    return found


def by_step(timeline: Timeline, trace: Trace) -> list[list[tuple[int, int, int, str, int]]]:
    """The ops that begin in each step, in the order of their numbers: ids are given out as ops begin."""
    found: list[list] = [[] for _ in timeline.steps.end_ns]
    for op in spans(trace):
        step = int(np.searchsorted(timeline.steps.start_ns, op[1], side="right")) - 1
        if step >= 0 and op[1] < timeline.steps.end_ns[step]:
            found[step].append(op)
    return [sorted(ops, key=lambda op: op[4]) for ops in found]


def lie_as_in_the_trace(timed: Timeline, named: Timeline, found: Pairing) -> int:
    """Checks that every op is where its step has it, inside the op that it is inside of there; how many are."""
    around, checked = parents(spans(named.trace)), 0
    theirs = by_step(named, named.trace)
    for ops in by_step(timed, found.trace):
        names = [op[3] for op in ops]
        like = next((step for step in theirs if [op[3] for op in step] == names), None)
        assert like is not None, "each op once, and all of a step"
        here = {original[4]: op for original, op in zip(like, ops, strict=True)}
        for number, (thread, start, end, *_) in here.items():
            outer = here.get(around.get(number, -1))
            assert start <= end
            if outer is not None:
                checked += 1
                assert outer[0] == thread
                assert outer[1] <= start <= end <= outer[2]
    return checked
