"""A rank's graph reduced to its synchronisation points: per point the LABELS longest ways to it from earlier ones.

One pass over the nodes in order, each carrying the LABELS (source, distance) pairs that bind latest. A way ends at the
next point: what it depends on further back is that point's own matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from gpuprof.ranks.digest_data import LABELS, WORK, Floats, Ints, Labels
from gpuprof.replay.graph import Graph
from gpuprof.tracefile.trace import U8


@dataclass(frozen=True, slots=True)
class Contracted:
    """The ways to each point."""

    labels: Labels
    other_ns: Floats
    """[points, LABELS] The same ways with the durations given as `other`."""
    anchor_ns: Floats
    """[points] Earliest arrival in the recorded round by what the round before left; -inf: none."""


def contract(graph: Graph, points: Ints, marks: Ints, work: U8, other: Floats | None = None) -> Contracted:
    """`points`: nodes in order; `marks`: those of them (by index) that end with their own work, the others when their
    peers say so. `work`: per node index into WORK. `other`: further durations of the same graph."""
    edges = graph.edges
    n = len(graph)
    point_of = np.full(n, -1, np.int64)
    point_of[points] = np.arange(len(points))
    pred = np.full((len(points), LABELS), -1, np.int32)
    lag, second = (np.zeros((len(points), LABELS)) for _ in range(2))
    shares = np.zeros((len(points), LABELS, len(WORK)), np.uint8)
    anchor = np.empty(len(points))
    other = graph.duration_ns if other is None else other
    _contract(
        graph.duration_ns, other, edges.first, edges.source, edges.lag_ns, edges.from_start, graph.before_ns, point_of,
        work, pred, lag, second, shares, anchor,
    )  # fmt: skip
    own, own_work = np.zeros(len(points), np.float32), np.full(len(points), len(WORK) - 1, np.uint8)
    own[marks] = graph.duration_ns[points[marks]]
    own_work[marks] = work[points[marks]]
    labels = Labels(pred, lag.astype(np.float32), shares, own, own_work)
    return Contracted(labels, second.astype(np.float32), anchor)


@numba.njit(cache=True)
def _contract(  # pragma: no cover - compiled
    duration,
    other,
    first,
    source,
    lag,
    from_start,
    before,
    point_of,
    work,
    pred,
    out_lag,
    out_other,
    out_shares,
    anchor,
):
    n, width, kinds = len(duration), pred.shape[1], 4
    start, end = before.copy(), before.copy()
    fixed = np.full(n, -np.inf)
    label = np.full((n, width), -1, np.int64)
    far = np.zeros((n, width))
    far2 = np.zeros((n, width))
    parts = np.zeros((n, width, kinds))
    ended = np.full(pred.shape[0], -np.inf)  # ends of the points in the round before
    ends = np.full(pred.shape[0], -np.inf)  # and in this one
    here = np.empty(width, np.int64)
    value, dist, dist2 = np.empty(width), np.empty(width), np.empty(width)
    part = np.zeros((width, kinds))
    for r in range(2):
        for node in range(n):
            begin = -1e18
            bound = -np.inf
            used = 0
            for e in range(first[node], first[node + 1]):
                s = source[e]
                begin = max(begin, (start[s] if from_start[e] else end[s]) + lag[e])
                wraps = s >= node
                if r == 0:
                    if wraps:
                        if before[s] > -5e17:
                            bound = max(bound, before[s] + lag[e])
                    elif point_of[s] < 0 or from_start[e]:
                        bound = max(bound, fixed[s] + lag[e] + (0.0 if from_start[e] else duration[s]))
                if wraps and r == 0:
                    continue
                single = point_of[s] >= 0 and not from_start[e]
                for c in range(1 if single else width):
                    if single:
                        p = point_of[s]
                        d, d2 = lag[e], lag[e]
                    else:
                        p = label[s, c]
                        if p == -1:
                            continue
                        d, d2 = far[s, c] + lag[e], far2[s, c] + lag[e]
                        if not from_start[e]:
                            d += duration[s]
                            d2 += other[s]
                    if wraps:
                        if p < 0:
                            continue  # two rounds back: whoever went through a whole round has met a point in it
                        p = -2 - p
                    v = d + (ended[-2 - p] if p < -1 else ends[p])
                    at = -1
                    for k in range(used):
                        if here[k] == p:
                            at = k
                    if at >= 0:
                        if d <= dist[at]:
                            continue
                    elif used < width:
                        at = used
                        used += 1
                    else:
                        at = 0
                        for k in range(1, width):
                            if value[k] < value[at]:
                                at = k
                        if value[at] >= v:
                            continue
                    here[at], dist[at], dist2[at], value[at] = p, d, d2, v
                    for q in range(kinds):
                        part[at, q] = 0.0 if single else parts[s, c, q]
                    if not single and not from_start[e]:
                        part[at, work[s]] += duration[s]
                    part[at, work[node]] += max(lag[e], 0.0)
            if r == 0:
                fixed[node] = bound
            start[node] = begin
            end[node] = begin + duration[node]
            for k in range(width):
                label[node, k] = here[k] if k < used else -1
                if k < used:
                    far[node, k], far2[node, k] = dist[k], dist2[k]
                    for q in range(kinds):
                        parts[node, k, q] = part[k, q]
            point = point_of[node]
            if point >= 0:
                ends[point] = end[node]
                if r == 0:
                    anchor[point] = bound
                for k in range(width):
                    pred[point, k] = label[node, k]
                    if k < used:
                        out_lag[point, k], out_other[point, k] = dist[k], dist2[k]
                        whole = max(part[k].sum(), 1e-9)
                        for q in range(kinds):
                            out_shares[point, k, q] = np.uint8(round(255 * part[k, q] / whole))
        ended[:] = ends
