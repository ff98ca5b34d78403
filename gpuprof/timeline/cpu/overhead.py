"""When the profiler itself was at work, as it reports it."""

from __future__ import annotations

import re

from gpuprof.timeline.intervals import Intervals, union
from gpuprof.tracefile.trace import Trace

PROFILERS_OWN = re.compile(r"Activity Buffer|Buffer Flush|Instrumentation|^Resource|CUPTI", re.IGNORECASE)
"""Overhead records that are the profiler's. "Command Buffer Full" is back-pressure, module loading is the program's."""


def profiler_overhead(trace: Trace) -> Intervals:
    """The union of the profiler's own overhead records."""
    other = trace.other
    rows = trace.rows_named(other.category, lambda text: text == "overhead")
    rows &= trace.rows_named(other.name, PROFILERS_OWN.search)
    return union(other.start_ns[rows], other.end_ns[rows])
