"""Evidence for a finding: the longest stretches of what it is about, as places in the recording."""

from __future__ import annotations

import numpy as np

from gpuprof.diagnosis.case import Case
from gpuprof.diagnosis.model import Evidence
from gpuprof.timeline.links import around
from gpuprof.tracefile.model import OP, Mask

SHOWN = 3
"""Places that are named beside the sum."""
APART_NS = 100_000
"""Pieces of a lane nearer than this are one stretch to a person."""
BEGIN_NS = 20_000
"""An op that begins this much before a stretch begins with it: what is before its first launch is host time."""
MOST = 0.5
"""Share of a stretch that an op must take to be what the stretch is; else it is just what begins it."""
AND_ON = " …"
"""Ends the name of what begins a stretch of more than that."""


def spans(case: Case, text: str, nodes: Mask, shown: int = SHOWN) -> tuple[Evidence, ...]:
    """The statement, and the longest stretches of the nodes in the recording."""
    graph = case.graph
    found = [Evidence(text)]
    later = case.timeline.window[0] - case.origin_ns
    stretches = []
    rows = np.flatnonzero(nodes & ~graph.waits)
    tracks = np.where(graph.on_gpu[rows], -1 - _device(case, rows), graph.lane[rows])
    for track in np.unique(tracks).tolist():
        mine = rows[tracks == track]
        mine = mine[np.argsort(graph.recorded_start_ns[mine], kind="stable")]
        start, end = graph.recorded_start_ns[mine], np.maximum.accumulate(graph.recorded_end_ns[mine])
        cuts = np.flatnonzero(start[1:] - end[:-1] > APART_NS) + 1
        first, last = np.concatenate([[0], cuts]), np.concatenate([cuts, [len(mine)]]) - 1
        stretches += [
            (float(end[b] - start[a]), float(start[a]), int(mine[a]), track) for a, b in zip(first, last, strict=True)
        ]
    for ns, start, node, track in sorted(stretches, reverse=True)[:shown]:
        found.append(Evidence(_what(case, node, start, ns), round(start) + later, round(ns), _track(case, track)))
    return tuple(found)


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
        return f"GPU {-1 - track}"
    thread = case.trace.threads[track]
    return thread.name or thread.thread
