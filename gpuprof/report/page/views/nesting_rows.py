"""How deeply spans are nested, and so in which row of its track a span is drawn; and a span's own time."""

from __future__ import annotations

import numpy as np

from gpuprof.timeline.nesting import Nesting, nest
from gpuprof.tracefile.trace import I32, I64


def depths(start_ns: I64, end_ns: I64) -> I64:
    """Depth of each span of one track, 0 outermost; spans of one depth do not overlap.

    Spans that overlap without one containing the other also count as nested.
    """
    return levels(nest(np.zeros(len(start_ns), np.int32), start_ns, np.maximum(start_ns, end_ns)).begun_in)


def levels(parent: I64) -> I64:
    """Number of ancestors of each row."""
    level = (parent >= 0).astype(np.int64)
    ancestor = parent.copy()
    # Twice as far in every round: `level` is always the distance to `ancestor`, or to the top.
    while (active := np.flatnonzero(ancestor >= 0)).size:
        reached = ancestor[active]
        level[active] += level[reached]
        ancestor[active] = ancestor[reached]
    return level


def own_ns(spans: Nesting, thread: I32, start: I64, end: I64) -> I64:
    """Per span, the time in which it is the innermost of its thread, so that no moment counts twice."""
    moments, threads = np.concatenate([start, end]), np.concatenate([thread, thread])
    order = np.lexsort((moments, threads))
    moments, threads = moments[order], threads[order]
    lasts = np.append(moments[1:] - moments[:-1], 0)
    lasts[np.append(threads[1:] != threads[:-1], True)] = 0
    cuts = np.flatnonzero(lasts)
    row = spans.innermost(threads[cuts], moments[cuts])
    own = np.zeros(len(start), np.int64)
    np.add.at(own, row[row >= 0], lasts[cuts[row >= 0]])
    return own
