"""Selects representative steps of a recording that is too long to replay as a whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuprof.timeline.devices import device_timelines
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import ABSENT
from gpuprof.units import Assumed, Events, Steps

MOST_EVENTS: Assumed[Events] = 400_000
"""Most ops, calls and GPU events that are replayed: all fixes together then take some seconds."""
FEWEST_REPRESENTATIVE: Assumed[Steps] = 2
"""A single step may be an outlier."""


def representative(timeline: Timeline, most_events: int = MOST_EVENTS) -> Timeline:
    """The timeline of consecutive steps that hold about `most_events` events, chosen so that their times are closest to
    the median. The timeline itself if it has no more events.
    """
    steps = timeline.steps
    count = len(steps.start_ns)
    low, high = steps.window
    trace = timeline.trace
    events = sum(
        int(np.count_nonzero((table.start_ns >= low) & (table.start_ns < high)))
        for table in (trace.ops, trace.calls, trace.gpu)
    )
    wanted = max(FEWEST_REPRESENTATIVE, int(count * most_events / max(events, 1)))
    if wanted >= count:
        return timeline
    took = (steps.end_ns - steps.start_ns).astype(np.float64)
    off = np.abs(took - np.median(took))
    first = int(np.convolve(off, np.ones(wanted), "valid").argmin())
    chosen = replace(
        steps, start_ns=steps.start_ns[first : first + wanted], end_ns=steps.end_ns[first : first + wanted]
    )
    low, high = chosen.window
    moment = np.where(timeline.links.begun_ns == ABSENT, trace.gpu.start_ns, timeline.links.begun_ns)
    return replace(
        timeline,
        steps=chosen,
        devices=device_timelines(trace, timeline.links, timeline.kind, chosen.window),
        members=np.flatnonzero((moment >= low) & (moment < high)),
    )
