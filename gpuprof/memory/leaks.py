"""Memory that grows from step to step, by the line of Python that allocated it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.memory.lifetimes import Allocations
from gpuprof.tracefile.trace import I64
from gpuprof.units import Assumed, Bytes, Share, Steps

WARM_UP: Assumed[Steps] = 1
"""Boundaries left out at the beginning: the first steps allocate the optimizer's state."""
FEWEST_BOUNDARIES: Assumed[Steps] = 4
"""Step boundaries needed to call a growth a leak."""
GROWING_STEPS: Assumed[Share] = 0.8
"""Share of the steps in which a leak must have grown."""
LEAST_GROWTH_BYTES: Assumed[Bytes] = 1024
"""Smaller growth per step is not reported."""
MOST_BOUNDARIES: Assumed[Steps] = 512
"""Only this many last boundaries of a history are examined."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A group of allocations that grows each step."""

    group: int
    bytes_per_step: int
    steps: int
    bytes: int


def growing(found: Allocations, group: np.ndarray, boundaries: I64) -> list[Growth]:
    """Groups whose memory never shrinks between steps and grows in nearly all of them; most first.

    group: a number from 0 for each piece of memory, -1 for those to leave out. boundaries: events at which steps begin.
    """
    moments = boundaries[WARM_UP:][-MOST_BOUNDARIES:] - 1
    if len(moments) < FEWEST_BOUNDARIES:
        return []
    # In use at the moments [first, last).
    first, last = np.searchsorted(moments, found.start), np.searchsorted(moments, found.end)
    rows = np.flatnonzero((first < last) & (group >= 0))
    if not len(rows):
        return []
    groups, which = np.unique(group[rows], return_inverse=True)
    change = np.zeros((len(groups), len(moments) + 1), np.int64)
    np.add.at(change, (which, first[rows]), found.size[rows])
    np.subtract.at(change, (which, last[rows]), found.size[rows])
    held = np.cumsum(change, axis=1)[:, :-1]
    steps = np.diff(held, axis=1)
    median = np.median(steps, axis=1).astype(np.int64)
    leaking = (steps >= 0).all(axis=1) & ((steps > 0).mean(axis=1) >= GROWING_STEPS) & (median >= LEAST_GROWTH_BYTES)
    leaks = [
        Growth(int(groups[row]), int(median[row]), steps.shape[1], int(held[row, -1]))
        for row in np.flatnonzero(leaking).tolist()
    ]
    return sorted(leaks, key=lambda leak: -leak.bytes_per_step)
