"""Which phase each event is in, and where steps end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.memory.snapshot import ALLOC, Events
from gpuprof.memory.stacks import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTE, UNKNOWN, Readings
from gpuprof.tracefile.trace import I32, I64


@dataclass(frozen=True, slots=True)
class MemoryPhases:
    """The phases of a history."""

    phase: I32
    """Per event; an event that says nothing is in the phase of the one before."""
    own: I32
    """Per event the phase that it shows itself; UNKNOWN if it is taken from the event before."""
    boundaries: I64
    """Events at which a new step begins."""
    source: str | None
    """What ends a step: optimizer | backward; None without steps."""


def find_passes(events: Events, readings: Readings) -> MemoryPhases:
    """The phases and the steps of a history, by its allocations' stacks."""
    own = np.full(len(events), UNKNOWN, np.int32)
    allocs = np.flatnonzero(events.action == ALLOC)
    stack = events.stack[allocs]
    own[allocs] = readings.phase[stack]
    if not readings.bare[stack].all():
        # Autograd's threads run no Python: after a forward, memory without a Python line belongs to the backward.
        bare = allocs[readings.bare[stack] & (readings.phase[stack] == UNKNOWN)]
        before = _carried(own)[bare]
        own[bare[np.isin(before, (FORWARD, RECOMPUTE, BACKWARD))]] = BACKWARD
    phase = _carried(own)
    source = "optimizer" if (phase == OPTIMIZER).any() else "backward" if (phase == BACKWARD).any() else None
    boundaries = _boundaries(phase, OPTIMIZER if source == "optimizer" else BACKWARD)
    return MemoryPhases(phase, own, boundaries, source if len(boundaries) else None)


def _carried(own: I32) -> I32:
    """Each event's phase, else that of the last one that has one."""
    last = np.maximum.accumulate(np.where(own != UNKNOWN, np.arange(len(own)), -1))
    return np.where(last >= 0, own[last], UNKNOWN).astype(np.int32) if len(own) else own


def _boundaries(phase: I32, last: int) -> I64:
    """Events at which a forward begins after the phase that ends a step."""
    rows = np.flatnonzero((phase == FORWARD) | (phase == last))
    if not len(rows):
        return np.empty(0, np.int64)
    forward = phase[rows] == FORWARD
    return rows[1:][forward[1:] & ~forward[:-1]]


def ends_of(phase: I32, which: tuple[int, ...]) -> I64:
    """For each event, the next event whose phase is none of `which`; the number of events if there is none."""
    rows = np.where(np.isin(phase, which), len(phase), np.arange(len(phase)))
    return np.minimum.accumulate(rows[::-1])[::-1]
