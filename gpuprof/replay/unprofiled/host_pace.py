"""How fast the CPU of a recording records events: its pace, by which the cost of an event is scaled."""

from __future__ import annotations

import numpy as np

from gpuprof.calibration import profiler as calibrated
from gpuprof.timeline.cpu.dispatch import lacks_inner_ops
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import Calls, Ops
from gpuprof.units import Assumed, Count, Measured, Ratio, Share

TYPICAL_SHARE: Assumed[Share] = 0.05
"""Share of all ops from which an op is found in typical places: compiled code has few of it, in others."""
PROBES = (
    ("aten::as_strided", calibrated.STRIDED_NS.value, TYPICAL_SHARE),
    ("aten::empty_strided", calibrated.EMPTY_STRIDED_NS.value, 0.0),
)
"""Ops that do next to nothing, so that their recorded time shows how fast the CPU records: each with its time at pace
1, and the share of all ops from which it is trusted."""
LAUNCH_PROBE = ("cudaLaunchKernel", calibrated.LAUNCH_NS.value)
"""If no such op was recorded, a launch shows the pace, less exactly."""
NSYS_PROBE = ("cudaLaunchKernel", calibrated.NSYS_LAUNCH_NS.value)
"""The same for Nsight Systems, which records calls."""
FEWEST_OPS: Assumed[Count] = 30
PACES: Measured[tuple[Ratio, Ratio]] = (0.6, 3.0)
"""Limits of a pace: recorded CPUs were between 0.8 and 2.6; beyond these limits something else makes the op long."""


def host_pace(timeline: Timeline) -> float:
    """How slowly the CPU records, 1 for the median CPU of profiler.EVENT_NS: time of its shortest op / the usual time,
    or that of a launch if such ops were not recorded."""
    return pace_and_spread(timeline)[0]


def pace_and_spread(timeline: Timeline) -> tuple[float, float]:
    """The CPU's pace, and the factor by which the cost of an event may be less or more than the pace says."""
    trace = timeline.trace
    if trace.reading.kind == "nsys":
        probes: tuple[tuple[Ops | Calls, str, float, float, float], ...] = (
            (trace.calls, *NSYS_PROBE, 0.0, calibrated.NSYS_SPREAD.value),
        )
    elif lacks_inner_ops(timeline):
        # The ops that do next to nothing are gone, except those that are called by themselves or had to wait.
        probes = (
            (trace.calls, *LAUNCH_PROBE, 0.0, _both(calibrated.LAUNCH_SPREAD.value, calibrated.LEFT_OUT_SPREAD.value)),
        )
    else:
        ops = tuple((trace.ops, *probe, calibrated.SPREAD.value) for probe in PROBES)
        probes = (*ops, (trace.calls, *LAUNCH_PROBE, 0.0, calibrated.LAUNCH_SPREAD.value))
    for table, name, usual, share, spread in probes:
        number = trace.string_ids.get(name)
        rows = np.flatnonzero(table.name == number) if number is not None else np.empty(0, np.int64)
        took = (table.end_ns - table.start_ns)[rows]
        # Recordings from before 2024 have whole microseconds, which do not show shorter times.
        if len(rows) >= max(FEWEST_OPS, share * len(table)) and np.any(took % 1000):
            return float(np.clip(float(np.median(took)) / usual, *PACES)), spread
    return 1.0, probes[-1][-1]


def _both(one: float, other: float) -> float:
    """The uncertainty factor of a product of two independent values with these uncertainty factors."""
    return float(np.exp(np.hypot(np.log(one), np.log(other))))
