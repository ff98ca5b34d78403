"""Differences between the clocks of ranks, from pairs of ranks with matched collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuprof.tracefile.trace import F64, I64
from gpuprof.units import Assumed, Ns, Rounds

ROUNDS: Assumed[Rounds] = 200
FLOOR_NS: Assumed[Ns] = 1_000.0
"""Ends of one collective on two GPUs differ by about 1 µs even with perfect clocks."""


@dataclass(frozen=True, slots=True)
class Link:
    """Clock of rank `b` minus that of rank `a`, by their index."""

    a: int
    b: int
    offset_ns: float
    zero_ns: int
    """To be added to `offset_ns`, ns: Unix times exceed what a float represents exactly."""
    collectives: int
    spread_ns: float

    @property
    def whole_ns(self) -> int:
        return self.zero_ns + round(self.offset_ns)


def clock_offsets(count: int, links: Sequence[Link]) -> tuple[int | None, ...]:
    """Each rank's clock minus the first's, ns; None if no chain of links leads to it.

    Least squares over all links, weighted by the collectives behind each over the variance of their ends: groups that
    overlap (TP and DP) give cycles, which no single chain of links uses. A spanning tree gives exact whole numbers to
    start from; conjugate gradients add the correction in floats.
    """
    tree = _tree(count, links)
    known = [link for link in links if tree[link.a] is not None and tree[link.b] is not None]
    if not known:
        return tuple(tree)
    a, b = (np.array([getattr(link, end) for link in known]) for end in "ab")
    left = np.array([link.whole_ns - ((tree[link.b] or 0) - (tree[link.a] or 0)) for link in known], np.float64)
    weight = np.array([link.collectives / (link.spread_ns + FLOOR_NS) ** 2 for link in known])
    correction = _least_squares(count, a, b, left, weight / weight.max())
    correction -= correction[0]
    return tuple(None if at is None else at + round(float(more)) for at, more in zip(tree, correction, strict=True))


def _tree(count: int, links: Sequence[Link]) -> list[int | None]:
    """Offsets along the first chain of links that leads to each rank."""
    offsets: list[int | None] = [None] * count
    if not count:
        return offsets
    near: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for link in links:
        near[link.a].append((link.b, link.whole_ns))
        near[link.b].append((link.a, -link.whole_ns))
    offsets[0] = 0
    ahead = [0]
    for one in ahead:
        for other, offset in near[one]:
            if offsets[other] is None:
                offsets[other] = (offsets[one] or 0) + offset
                ahead.append(other)
    return offsets


def _least_squares(count: int, a: I64, b: I64, left: F64, weight: F64) -> F64:
    """x with x[b] - x[a] nearest to `left`: conjugate gradients on the weighted Laplacian, from 0."""

    def gradient(difference: F64) -> F64:
        pull = weight * difference
        return np.bincount(b, pull, count).astype(np.float64) - np.bincount(a, pull, count)

    x = np.zeros(count)
    residual = gradient(left)
    direction, norm = residual.copy(), float(residual @ residual)
    least = 1e-18 * max(norm, 1e-300)
    for _ in range(min(ROUNDS, 2 * count)):
        if norm <= least:
            break
        applied = gradient(direction[b] - direction[a])
        step = norm / max(float(direction @ applied), 1e-300)
        x += step * direction
        residual -= step * applied
        norm, before = float(residual @ residual), norm
        direction = residual + norm / before * direction
    return x
