"""Evidence for a finding: the longest stretches of what it is about, as places in the recording."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from gpuprof.diagnosis.case import Case
from gpuprof.diagnosis.diagnosis import Evidence
from gpuprof.diagnosis.sentences import gpu_named, size_in_ms
from gpuprof.timeline.links import around
from gpuprof.tracefile.trace import F64, I64, OP, Mask

SHOWN = 3
"""Places that are named in addition to the sum."""
APART_NS = 100_000
"""Pieces of a lane nearer than this are one stretch to a person."""
BEGIN_NS = 20_000
"""An op that begins this much before a stretch begins with it: what is before its first launch is host time."""
MOST = 0.5
"""Share of a stretch that an op must take to be what the stretch is; else it is just what begins it."""
SLOWER = 1.1
"""Recording made a place this many times as long as it is taken to be."""
AND_ON = " …"
"""Ends the name of what begins a stretch of more than that."""


def spans(case: Case, text: str, nodes: Mask, shown: int = SHOWN, waits: bool = False) -> tuple[Evidence, ...]:
    """The statement with how much of it is shown, and the longest stretches of the nodes in the recording.

    `nodes` are those that the statement's totals are of; `waits`: what it is about is the host's waiting in them.
    """
    graph = case.graph
    later = case.timeline.window[0] - case.origin_ns
    rows = np.flatnonzero(nodes & (graph.waits == waits))
    if not len(rows):
        return (Evidence(text),)
    tracks = np.where(graph.on_gpu[rows], -1 - _device(case, rows), graph.lane[rows])
    rows = rows[np.lexsort((graph.recorded_start_ns[rows], tracks))]
    tracks = np.where(graph.on_gpu[rows], -1 - _device(case, rows), graph.lane[rows])
    first, start, end = _stretches(tracks, graph.recorded_start_ns[rows], graph.recorded_end_ns[rows])
    longest = np.lexsort((-start, start - end))[:shown]
    places = [
        Evidence(
            _what(case, int(rows[first[i]]), float(start[i]), float(end[i] - start[i])),
            round(float(start[i])) + later,
            round(float(end[i] - start[i])),
            _track(case, int(tracks[first[i]])),
        )
        for i in longest.tolist()
    ]
    of = np.searchsorted(first, np.arange(len(rows)), side="right") - 1
    return Evidence(text + _of_which_shown(case, rows, np.isin(of, longest), len(places), len(first))), *places


def _stretches(tracks: I64, start: F64, end: F64) -> tuple[I64, F64, F64]:
    """(first piece, start, end) of each stretch: pieces in order of track and time that follow one another."""
    bounds = [0, *(np.flatnonzero(np.diff(tracks)) + 1).tolist(), len(tracks)]
    firsts, until = [], []
    for a, b in pairwise(bounds):
        last = np.maximum.accumulate(end[a:b])
        apart = np.flatnonzero(start[a + 1 : b] - last[:-1] > APART_NS) + 1
        firsts += [a, *(apart + a).tolist()]
        until += [*last[apart - 1].tolist(), float(last[-1])]
    first = np.array(firsts, np.int64)
    return first, start[first], np.array(until, np.float64)


def _of_which_shown(case: Case, rows: I64, seen: Mask, places: int, of: int) -> str:
    """`; shown: the 3 longest of 204 places, 4.2 of 240.5 ms a step`: what of the total the places hold.

    Without the profiler's cost, as all totals are; waits as recorded.
    """
    graph = case.graph
    recorded = (graph.recorded_end_ns - graph.recorded_start_ns)[rows].clip(0)
    ns = np.where(graph.waits[rows], recorded, graph.duration_ns[rows])
    on_gpu = graph.on_gpu[rows]
    both = bool(on_gpu.any()) and not on_gpu.all()
    parts = []
    for kind, name in ((on_gpu, " of GPU"), (~on_gpu, " of CPU time")):
        if (kind & seen).any():
            whole, part = case.per_step(float(ns[kind].sum())), case.per_step(float(ns[kind & seen].sum()))
            size = f"{size_in_ms(part)} of {_ms(whole)}" if places < of else _ms(whole)
            parts.append(f"{size} ms{name if both else ''}")
    which = (
        f"the {places} longest of {of:,} places" if places < of else "the only place" if of == 1 else f"all {of} places"
    )
    slower = recorded[seen].sum() > SLOWER * max(float(ns[seen].sum()), 1.0)
    return f"; shown: {which}, {' and '.join(parts)} a step{' (longer in the recording)' if slower else ''}"


def _ms(ns: float) -> str:
    """As totals are written: one decimal from 1 ms on."""
    return f"{ns / 1e6:,.1f}" if ns >= 0.95e6 else size_in_ms(ns)


def _what(case: Case, node: int, start: float, ns: float) -> str:
    """What a stretch is, else what begins it: kernel, op or call."""
    trace, graph = case.trace, case.graph
    scope, call = int(graph.scope[node]), int(graph.call[node])
    if graph.on_gpu[node]:
        row = int(graph.gpu_row[node])
        return _named(trace.strings[trace.gpu.name[row]], int(trace.gpu.end_ns[row] - trace.gpu.start_ns[row]), ns)
    if scope >= 0:
        scope = _outermost(case, scope, start)
        return _op_named(case, scope, ns)
    begun = np.array([case.timeline.window[0] + round(start)], np.int64)
    (outside,) = around(trace, case.timeline.nesting, begun).tolist()  # another thread's, which waits for this one
    if outside >= 0:
        return _op_named(case, int(outside), ns)
    return trace.strings[trace.calls.name[call]] if call >= 0 else "Python"


def _op_named(case: Case, op: int, ns: float) -> str:
    ops = case.trace.ops
    return _named(case.trace.strings[ops.name[op]], int(ops.end_ns[op] - ops.start_ns[op]), ns)


def _named(name: str, own_ns: float, ns: float) -> str:
    return name if own_ns >= MOST * ns else name + AND_ON


def _outermost(case: Case, op: int, start: float) -> int:
    """The op around `op` that begins where the stretch does."""
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    begun = case.timeline.window[0] + start - BEGIN_NS
    while parent[op] >= 0 and ops.kind[parent[op]] == OP and ops.start_ns[parent[op]] >= begun:
        op = int(parent[op])
    return op


def _device(case: Case, rows: np.ndarray) -> np.ndarray:
    gpu_row = case.graph.gpu_row[rows]
    return np.where(gpu_row >= 0, case.trace.gpu.device[gpu_row], 0)


def _track(case: Case, track: int) -> str:
    if track < 0:
        return gpu_named(-1 - track, case.devices)
    thread = case.trace.threads[track]
    return thread.name or thread.thread
