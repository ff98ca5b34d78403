"""How fast the host of a recording records: its pace, by which the cost of a recorded event is scaled."""

from __future__ import annotations

import numpy as np

from gpuprof.timeline.dispatch import lacks_inner_ops
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.model import Calls, Ops

PROBES = (("aten::as_strided", 420.0, 0.05), ("aten::empty_strided", 2_950.0, 0.0))
"""Ops that do next to nothing, so that their recorded time tells how fast the host records: with the median of the
recordings that RECORDED_EVENT_NS is from, and the share of all ops that makes them trusted (compiled code holds few,
in places that are not typical)."""
LAUNCH_PROBE = ("cudaLaunchKernel", 4_600.0)
"""Where no such op tells it a launch does: of 26 recordings on H200 hosts that hold both, eight of ten have
a pace told by the one that is within 1.2 times that told by the other (correlation of the logarithms 0.94), and of 19
that the host binds eight of ten cost within this many times what launches say (1.22 by the ops)."""
LAUNCH_SPREAD = 1.33
NSYS_PROBE = ("cudaLaunchKernel", 3_900.0)
"""The same for Nsight Systems, which records calls, with the median of a recording of a host of pace 1."""
NSYS_SPREAD = 1.6
"""What a call or range recorded by Nsight Systems costs was measured by six processes on H200 hosts, each of which
timed its steps before the capture and in it: 1.6, 2.3, 3.6, 4.9, 6.6 and 8.5 µs an event, with paces of 1.0, 1.3, 1.7,
1.3, 1.9 and 1.8. RECORDED_EVENT_NS times the pace is 0.5 to 1.4 times that."""
LEFT_OUT_SPREAD = 1.1
"""Where inner ops are missing from the file, what `profiler_cost.LEFT_OUT` adds for them is right to within this many
times in eight of ten recordings."""
FEWEST_OPS = 30
PACES = (0.6, 3.0)
"""Hosts that were seen lie between 0.8 and 2.6; beyond, something else makes the op long."""
SPREAD = 1.2
"""The cost of an event may be so many times less or more: the step's interval then meets the measured range for nine of
ten of those recordings."""


def host_pace(timeline: Timeline) -> float:
    """How slowly the host records, 1 for the median host that RECORDED_EVENT_NS is from: the time of its shortest op
    over the usual, or of a launch where such ops were not recorded."""
    return pace_and_spread(timeline)[0]


def pace_and_spread(timeline: Timeline) -> tuple[float, float]:
    """The host's pace, and how many times less or more than it says the cost of an event may be."""
    trace = timeline.trace
    if trace.reading.kind == "nsys":
        probes: tuple[tuple[Ops | Calls, str, float, float, float], ...] = (
            (trace.calls, *NSYS_PROBE, 0.0, NSYS_SPREAD),
        )
    elif lacks_inner_ops(trace, timeline.nesting):
        # The ops that do next to nothing are gone but for those that are called by themselves, or had to wait.
        probes = ((trace.calls, *LAUNCH_PROBE, 0.0, _both(LAUNCH_SPREAD, LEFT_OUT_SPREAD)),)
    else:
        ops = tuple((trace.ops, *probe, SPREAD) for probe in PROBES)
        probes = (*ops, (trace.calls, *LAUNCH_PROBE, 0.0, LAUNCH_SPREAD))
    for table, name, usual, share, spread in probes:
        number = trace.string_ids.get(name)
        rows = np.flatnonzero(table.name == number) if number is not None else np.empty(0, np.int64)
        took = (table.end_ns - table.start_ns)[rows]
        # Recordings of before 2024 hold whole microseconds, which tell nothing of what takes less than one.
        if len(rows) >= max(FEWEST_OPS, share * len(table)) and np.any(took % 1000):
            return float(np.clip(float(np.median(took)) / usual, *PACES)), spread
    return 1.0, probes[-1][-1]


def _both(one: float, other: float) -> float:
    """How many times less or more a product may be whose factors, independent of each other, may each be so many."""
    return float(np.exp(np.hypot(np.log(one), np.log(other))))
