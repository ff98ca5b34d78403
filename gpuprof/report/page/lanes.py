"""How deep spans lie in each other, and so in which row of its track a span is drawn."""

from __future__ import annotations

import numpy as np

from gpuprof.timeline.nesting import nest
from gpuprof.tracefile.model import I64


def depths(start_ns: I64, end_ns: I64) -> I64:
    """Depth of each span of one track, 0 outermost; no two spans of a depth overlap.

    Spans that overlap without one holding the other count as nested, too.
    """
    return levels(nest(np.zeros(len(start_ns), np.int32), start_ns, np.maximum(start_ns, end_ns)).parent)


def levels(parent: I64) -> I64:
    """Number of ancestors of each row."""
    level = (parent >= 0).astype(np.int64)
    ancestor = parent.copy()
    # Twice as far at every turn: `level` always holds the distance to `ancestor`, or to the top.
    while (active := np.flatnonzero(ancestor >= 0)).size:
        reached = ancestor[active]
        level[active] += level[reached]
        ancestor[active] = ancestor[reached]
    return level


def least_above(parent: I64, value: I64) -> I64:
    """The least value of each row and its ancestors."""
    least, ancestor = value.copy(), parent.copy()
    while (active := np.flatnonzero(ancestor >= 0)).size:
        reached = ancestor[active]
        least[active] = np.minimum(least[active], least[reached])
        ancestor[active] = ancestor[reached]
    return least
