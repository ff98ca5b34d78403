"""Evidence for a finding: the longest stretches of what it is about, as places in the recording."""

from __future__ import annotations

import numpy as np

from gpuprof.diagnosis.case import Case
from gpuprof.diagnosis.model import Evidence
from gpuprof.replay.graph import Mask

SHOWN = 3
"""Places that are named beside the sum."""
APART_NS = 100_000
"""Pieces of a lane nearer than this are one stretch to a person."""


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
        found.append(Evidence(_where(case, node), round(start) + later, round(ns), _track(case, track)))
    return tuple(found)


def _device(case: Case, rows: np.ndarray) -> np.ndarray:
    gpu_row = case.graph.gpu_row[rows]
    return np.where(gpu_row >= 0, case.trace.gpu.device[gpu_row], 0)


def _track(case: Case, track: int) -> str:
    if track < 0:
        return f"GPU {-1 - track}"
    thread = case.trace.threads[track]
    return thread.name or thread.thread


def _where(case: Case, node: int) -> str:
    """What begins a stretch: the op, else the call."""
    trace, graph = case.trace, case.graph
    scope, call = int(graph.scope[node]), int(graph.call[node])
    if graph.on_gpu[node]:
        return trace.strings[trace.gpu.name[graph.gpu_row[node]]]
    if scope >= 0:
        return trace.strings[trace.ops.name[scope]]
    return trace.strings[trace.calls.name[call]] if call >= 0 else "Python"
