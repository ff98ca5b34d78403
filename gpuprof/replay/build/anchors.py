"""Edges to work that begins for an unrecorded reason: it keeps its distance from what the main thread did at that
moment."""

from __future__ import annotations

import numpy as np

from gpuprof.replay.build.cpu_lanes import Handover, Pieces
from gpuprof.replay.build.edge_list import EdgeList, Nodes
from gpuprof.replay.build.latencies import LATER_REASON_NS
from gpuprof.replay.build.work import GpuWork
from gpuprof.replay.graph import ANCHOR
from gpuprof.tracefile.trace import F64, I64


def anchors(
    nodes: Nodes, pieces: Pieces, work: GpuWork, handovers: list[Handover], main_thread: int
) -> tuple[EdgeList, ...]:
    """Edges to threads that no other thread hands over to, and to work whose launch was not recorded; work that follows
    directly on its stream was queued and needs none."""
    if main_thread < 0:
        return ()
    called = {int(pieces.lane[one.target]) for one in handovers}
    free = np.array([i for i in np.flatnonzero(pieces.first) if pieces.lane[i] not in {*called, main_thread}], np.int64)
    lost = np.flatnonzero((work.piece < 0) & ~(work.start_ns - work.free_ns < LATER_REASON_NS))
    begun = pieces.start_ns[free]
    return (
        *_anchored(pieces, main_thread, nodes, nodes.piece(free), begun, begun),
        *_anchored(pieces, main_thread, nodes, nodes.work(lost), work.moment_ns[lost], work.start_ns[lost]),
    )


def _anchored(
    pieces: Pieces, main_thread: int, nodes: Nodes, target: I64, moment_ns: I64, start_ns: I64 | F64
) -> tuple[EdgeList, ...]:
    """Edges to nodes that started at `start_ns` from the main thread's pieces at `moment_ns`."""
    at = pieces.active(main_thread, moment_ns)
    known = np.flatnonzero(at >= 0)
    at = at[known]
    if not len(known):
        return ()
    return (EdgeList(ANCHOR, target[known], nodes.piece(at), start_ns[known] - pieces.start_ns[at], True),)
