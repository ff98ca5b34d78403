"""Reduces a rank's graph to its synchronisation points: for each, the LABELS longest paths from earlier points.
One pass over the nodes in order; each carries the LABELS (source, distance) pairs that arrive latest. A path ends at
the next point, which carries its own dependencies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np

from gpuprof.ranks.digest_data import LABELS, NO_ROW, WORK, Floats, Ints, Labels
from gpuprof.replay.graph import Graph
from gpuprof.tracefile.trace import U8, Mask
from gpuprof.units import Convention, Ns

_NEVER: Convention[Ns] = -1e18
"""Start of a node that follows nothing in the round; half of it is before any other start."""

_inlined = numba.njit(cache=True, inline="always")  # the functions are cheaper than a call


@dataclass(frozen=True, slots=True)
class Contracted:
    """The paths to each point."""

    labels: Labels
    other_ns: Floats
    """[points, LABELS] The same paths with the durations given as `other`."""
    anchor_ns: Floats
    """[points] Earliest arrival in the recorded round because of the previous round; -inf: none."""


class _Edges(NamedTuple):
    """Edge `e` of a node: `first[node] <= e < first[node + 1]`."""

    first: Ints
    source: Ints
    lag: Floats
    from_start: Mask


class _Ways(NamedTuple):
    """[LABELS] The paths to one node, or [nodes, LABELS] to each."""

    point: Ints
    """Their source; `previous(point)`: in the previous round; NO_ROW: unused."""
    ns: Floats
    other_ns: Floats
    parts: Floats
    """[…, WORK] ns of each kind of work."""
    value: Floats
    """When each arrives; not kept for all nodes."""


class _Found(NamedTuple):
    """The result: the paths to each point."""

    pred: Ints
    lag: Floats
    other: Floats
    shares: U8
    anchor: Floats


def contract(graph: Graph, points: Ints, marks: Ints, work: U8, other: Floats | None = None) -> Contracted:
    """`points`: nodes in order; `marks`: indices of points that end with their own work, while the others end when
    their peers have arrived. `work`: for each node an index into WORK. `other`: alternative durations of the same
    graph."""
    edges = graph.edges
    n, count = len(graph), len(points)
    point_of = np.full(n, -1, np.int64)
    point_of[points] = np.arange(count)
    found = _Found(
        pred=np.full((count, LABELS), NO_ROW, np.int32), lag=np.zeros((count, LABELS)),
        other=np.zeros((count, LABELS)), shares=np.zeros((count, LABELS, len(WORK)), np.uint8), anchor=np.empty(count),
    )  # fmt: skip
    _contract(
        graph.duration_ns, graph.duration_ns if other is None else other,
        _Edges(edges.first, edges.source, edges.lag_ns, edges.from_start), graph.before_ns, point_of, work,
        _no_ways((n, LABELS)), _no_ways((LABELS,)), found,
    )  # fmt: skip
    own, own_work = np.zeros(count, np.float32), np.full(count, len(WORK) - 1, np.uint8)
    own[marks] = graph.duration_ns[points[marks]]
    own_work[marks] = work[points[marks]]
    labels = Labels(found.pred, found.lag.astype(np.float32), own, found.shares, own_work)
    return Contracted(labels, found.other.astype(np.float32), found.anchor)


def _no_ways(shape: tuple[int, ...]) -> _Ways:
    return _Ways(
        np.full(shape, NO_ROW, np.int32), np.zeros(shape), np.zeros(shape), np.zeros((*shape, len(WORK)), np.float32),
        np.empty(shape if len(shape) == 1 else 0),
    )  # fmt: skip


@numba.njit(cache=True)
def _contract(duration, other, edges, before, point_of, work, kept, best, found):  # pragma: no cover - compiled
    """Visits the nodes twice, so that paths from the previous round are known. Fills `kept` and `found`; `best` is
    scratch space for one node's paths."""
    start, end = before.copy(), before.copy()
    fixed = np.full(len(duration), -np.inf)
    ended = np.full(len(found.anchor), -np.inf)  # ends of the points in the previous round
    ends = np.full(len(found.anchor), -np.inf)  # and in this one
    for r in range(2):
        for node in range(len(duration)):
            begin, bound, used = _NEVER, -np.inf, 0
            for e in range(edges.first[node], edges.first[node + 1]):
                source = edges.source[e]
                begin = max(begin, (start[source] if edges.from_start[e] else end[source]) + edges.lag[e])
                if r == 0:
                    bound = max(bound, _bound(e, node, duration, edges, before, point_of, fixed))
                if r > 0 or source < node:
                    used = _over(e, node, used, duration, other, edges, point_of, work, kept, best, ended, ends)
            start[node], end[node] = begin, begin + duration[node]
            _keep(node, used, kept, best)
            if r == 0:
                fixed[node] = bound
            point = point_of[node]
            if point >= 0:
                ends[point] = end[node]
                if r == 0:
                    found.anchor[point] = bound
                _write(point, used, best, found)
        ended[:] = ends


@_inlined
def _bound(e, node, duration, edges, before, point_of, fixed):  # pragma: no cover - compiled
    """A node's earliest start by an edge from work that was under way when the recording began."""
    source, lag = edges.source[e], edges.lag[e]
    if source >= node:
        return before[source] + lag if before[source] > _NEVER / 2 else -np.inf
    if edges.from_start[e]:
        return fixed[source] + lag
    return fixed[source] + lag + duration[source] if point_of[source] < 0 else -np.inf


@_inlined
def _over(
    e, node, used, duration, other, edges, point_of, work, kept, best, ended, ends
):  # pragma: no cover - compiled
    """Offers the paths over one edge to the node's best ones; returns their new number."""
    source, lag, from_start = edges.source[e], edges.lag[e], edges.from_start[e]
    single = point_of[source] >= 0 and not from_start
    for c in range(1 if single else kept.point.shape[1]):
        point = point_of[source] if single else kept.point[source, c]
        if point == NO_ROW:
            continue
        ns = other_ns = lag
        if not single:
            ns, other_ns = kept.ns[source, c] + lag, kept.other_ns[source, c] + lag
            if not from_start:
                ns, other_ns = ns + duration[source], other_ns + other[source]
        if source >= node:
            if point < 0:
                continue  # two rounds back: a path through a whole round passes a point in it
            point = -2 - point
        value = ns + (ended[-2 - point] if point < NO_ROW else ends[point])
        at = _place(used, point, ns, value, best)
        if at < 0:
            continue
        used = max(used, at + 1)
        best.point[at], best.ns[at], best.other_ns[at], best.value[at] = point, ns, other_ns, value
        for q in range(best.parts.shape[1]):
            best.parts[at, q] = 0.0 if single else kept.parts[source, c, q]
        if not single and not from_start:
            best.parts[at, work[source]] += duration[source]
        best.parts[at, work[node]] += max(lag, 0.0)
    return used


@_inlined
def _place(used, point, ns, value, best):  # pragma: no cover - compiled
    """Where a path is written: over a shorter one from the same point, into a free place, or over the one that arrives
    first; -1: nowhere."""
    for k in range(used):
        if best.point[k] == point:
            return k if ns > best.ns[k] else -1
    if used < len(best.point):
        return used
    first = 0
    for k in range(1, used):
        if best.value[k] < best.value[first]:
            first = k
    return first if best.value[first] < value else -1


@_inlined
def _keep(node, used, kept, best):  # pragma: no cover - compiled
    for k in range(len(best.point)):
        kept.point[node, k] = best.point[k] if k < used else NO_ROW
        if k < used:
            kept.ns[node, k], kept.other_ns[node, k] = best.ns[k], best.other_ns[k]
            for q in range(best.parts.shape[1]):
                kept.parts[node, k, q] = best.parts[k, q]


@_inlined
def _write(point, used, best, found):  # pragma: no cover - compiled
    for k in range(len(best.point)):
        found.pred[point, k] = best.point[k] if k < used else NO_ROW
        if k < used:
            found.lag[point, k], found.other[point, k] = best.ns[k], best.other_ns[k]
            whole = max(best.parts[k].sum(), 1e-9)
            for q in range(best.parts.shape[1]):
                found.shares[point, k, q] = np.uint8(round(255 * best.parts[k, q] / whole))
