"""Memory over time by owner, thinned out without losing its peaks."""

from __future__ import annotations

import numpy as np

from gpuprof.memory.lifetimes import Allocations
from gpuprof.memory.memory_report import Series
from gpuprof.memory.passes import MemoryPhases
from gpuprof.memory.snapshot import ABSENT_TIME, Events
from gpuprof.memory.stacks import AWAITING_FREE, OWNERS, PHASES
from gpuprof.tracefile.trace import I32, I64
from gpuprof.units import Convention, Points

MOST_POINTS: Convention[Points] = 900
"""About how many moments are kept."""


def series(
    found: Allocations,
    owner: I32,
    passes: MemoryPhases,
    events: Events,
    used: I64,
    held: I64 | None,
    points: int = MOST_POINTS,
) -> Series:
    """What each owner holds over time: of every stretch the first moment, the minimum and the maximum."""
    moments = _moments(used, points)
    times = events.time_us
    timed = len(times) > 0 and not (times == ABSENT_TIME).any()
    since = np.concatenate([[0.0], (times - times[0]) / 1e6])[moments] if timed else None
    phase = np.concatenate([[0], passes.phase])[moments]
    return Series(
        event=tuple((moments - 1).tolist()),
        seconds=None if since is None else tuple(since.tolist()),
        owners=_by_owner(found, owner, moments),
        reserved_bytes=None if held is None else tuple(held[moments].tolist()),
        phase=tuple(PHASES[key] for key in phase.tolist()),
    )


def _moments(used: I64, most: int) -> I64:
    """Rows of `used` to keep: all if there are at most `most`."""
    if len(used) <= most:
        return np.arange(len(used))
    edges = np.linspace(0, len(used), most // 3 + 1).astype(np.int64)
    kept = [np.array([0, int(np.argmax(used)), len(used) - 1])]
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = used[begin:end]
        kept.append(begin + np.array([0, int(part.argmin()), int(part.argmax())]))
    return np.unique(np.concatenate(kept))


def _by_owner(found: Allocations, owner: I32, moments: I64) -> dict[str, tuple[int, ...]]:
    # In use at the rows [first, last) of the moments; owned until `freed`, from then on waiting for another stream.
    first = np.searchsorted(moments, found.start + 1)
    freed = np.searchsorted(moments, np.clip(found.requested, found.start, found.end) + 1)
    last = np.searchsorted(moments, found.end + 1)
    change = np.zeros((len(OWNERS), len(moments) + 1), np.int64)
    np.add.at(change, (owner, first), found.size)
    np.subtract.at(change, (owner, freed), found.size)
    waits = np.full(len(owner), AWAITING_FREE)
    np.add.at(change, (waits, freed), found.size)
    np.subtract.at(change, (waits, last), found.size)
    held = np.cumsum(change, axis=1)[:, :-1]
    return {OWNERS[row]: tuple(held[row].tolist()) for row in np.flatnonzero(held.any(axis=1)).tolist()}
