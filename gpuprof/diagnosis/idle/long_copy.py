"""A single copy that blocks the CPU for most of an iteration: the verdict names it, as the first thing to look at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.diagnosis.idle.gaps import calls_by_cause
from gpuprof.diagnosis.sentences import Sentences, duration
from gpuprof.timeline.intervals import Cover, union
from gpuprof.timeline.timeline import Timeline
from gpuprof.timeline.unit import Unit
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import MEMCPY
from gpuprof.units import Assumed, Share

MOST_OF_ITERATION: Assumed[Share] = 0.5
"""Smallest share of an iteration that such a copy takes."""


@dataclass(frozen=True, slots=True)
class LongCopy:
    """The longest such copy."""

    text: str
    """`Memcpy HtoD (Pageable -> Device)`."""
    bytes: int
    """-1: not recorded."""
    op: str | None
    """The op that copies."""
    ns: int
    """Time of the copy, ns, without waiting for earlier work."""
    step_ns: int
    """Length of the iteration that contains it, ns."""
    steps: int
    """Iterations with such a copy."""
    of: int
    """Recorded iterations."""
    unit: Unit
    """What an iteration is called."""

    @property
    def share(self) -> float:
        """The copy's share of its iteration."""
        return self.ns / self.step_ns

    @property
    def sentence(self) -> str:
        """`One copy (Memcpy HtoD, 1,000 MB, aten::copy_) blocks the CPU for 80 of 90 ms.`"""
        size = f", {self.bytes / 1e6:,.0f} MB" if self.bytes > 0 else ""
        op = f", {self.op}" if self.op else ""
        some = f"each {self.unit}" if self.steps == self.of else f"{self.steps} of {self.of} {self.unit}s"
        which = "" if self.of == 1 else f" in {some}"
        return (
            f"One copy{which} ({self.text}{size}{op}) blocks the CPU (host) for {duration(self.ns)} of"
            f" {duration(self.step_ns)}."
        )


def copy_sentence(timeline: Timeline) -> Sentences:
    """The sentence on the copy; none without such a copy."""
    found = long_copy(timeline)
    return () if found is None else (found.sentence,)


@remembered
def long_copy(timeline: Timeline) -> LongCopy | None:
    """The longest copy that blocks the CPU for most of an iteration; None where no copy does.

    Its time is the part of its call in which the devices do no other work: a copy to the CPU also waits for work
    launched before it, and that wait is not counted.
    """
    trace, links, steps = timeline.trace, timeline.links, timeline.steps
    calls, gpu = trace.calls, trace.gpu
    rows = np.flatnonzero((links.call >= 0) & (gpu.kind == MEMCPY))
    rows = rows[calls_by_cause(timeline)[0][links.call[rows]]]
    step = np.searchsorted(steps.start_ns, calls.start_ns[links.call[rows]], side="right") - 1
    known = (step >= 0) & (calls.start_ns[links.call[rows]] < steps.end_ns[step])
    rows, step = rows[known], step[known]
    if not len(rows):
        return None
    others = np.setdiff1d(np.arange(len(gpu)), rows)
    call = links.call[rows]
    begin, end = calls.start_ns[call], np.minimum(calls.end_ns[call], steps.end_ns[step])
    busy = Cover(union(gpu.start_ns[others], gpu.end_ns[others]))
    own = (end - begin - busy.between(begin, end)).clip(0)
    took = steps.end_ns[step] - steps.start_ns[step]
    long = np.flatnonzero(own >= MOST_OF_ITERATION * took)
    if not len(long):
        return None
    first = int(long[own[long].argmax()])
    op = int(links.op[rows[first]])
    return LongCopy(
        text=trace.strings[gpu.name[rows[first]]],
        bytes=int(gpu.bytes[rows[first]]),
        op=None if op < 0 else trace.strings[trace.ops.name[op]],
        ns=int(own[first]),
        step_ns=int(took[first]),
        steps=len(np.unique(step[long])),
        of=len(steps.start_ns),
        unit=timeline.unit,
    )
