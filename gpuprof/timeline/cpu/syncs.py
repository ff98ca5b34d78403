"""Whether the CPU waits for the device at the end of each step."""

from __future__ import annotations

import numpy as np

from gpuprof.timeline.cpu.runtime_calls import SYNC_CALL
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.distinct import ordered
from gpuprof.tracefile.trace import Trace
from gpuprof.units import Assumed, Share

_END_SHARE: Assumed[Share] = 0.05
"""A wait that ends within this last part of a step leaves the CPU no time to run ahead."""


def end_in_sync(trace: Trace, timeline: Timeline) -> bool:
    """Whether all steps end in a call that waits for the device.

    The last step does not count: a profiler that is stopped waits by itself. So for a single step the answer is False.
    """
    starts, ends = timeline.steps.start_ns[:-1], timeline.steps.end_ns[:-1]
    if not len(starts):
        return False
    calls = trace.calls
    waits = trace.rows_named(calls.name, SYNC_CALL.search) & (calls.thread == timeline.main_thread)
    waited = ordered(calls.end_ns[waits])
    late = ends - (_END_SHARE * (ends - starts)).astype(np.int64)
    return bool(np.all(np.searchsorted(waited, ends, "right") > np.searchsorted(waited, late, "left")))
