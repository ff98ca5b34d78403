"""How long the CPU takes for a step at most: in steps that begin on an idle GPU it runs ahead of it."""

from __future__ import annotations

import numpy as np

from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.tracefile.trace import I64
from gpuprof.units import Assumed, Ratio

AHEAD: Assumed[Ratio] = 0.9
"""A step that takes the CPU no more than this share of what it takes the GPU has not waited for it all the time: clocks
and hooks differ by less."""
SAME_WORK: Assumed[tuple[Ratio, Ratio]] = (0.9, 1.5)
"""A step whose time on the GPU is within these shares of the median does the same work; some work varies, and a shorter
step would say that the CPU is quicker than it is."""


def cpu_at_most_ns(folder: RunFolder) -> int | None:
    """The CPU's time for a step without a profiler, ns, waits included: the shortest of the free-running steps in which
    it was ahead of the GPU. None if there is none, as where the CPU sets the pace.

    Timing begins with an idle GPU, so that the first steps are launched before the queue of launches is full.
    """
    steps = folder.steps
    rows = steps.rows("baseline_free", folder.rank)
    return None if steps.profiled[rows].any() else shortest_ahead(steps.ns[rows], steps.device_ns[rows])


def shortest_ahead(cpu_ns: I64, gpu_ns: I64) -> int | None:
    """The shortest CPU time among steps of the usual work in which the CPU was ahead; times that are not known are not
    positive."""
    known = (cpu_ns > 0) & (gpu_ns > 0)
    if not known.any():
        return None
    least, most = (ratio * float(np.median(gpu_ns[known])) for ratio in SAME_WORK)
    ahead = known & (cpu_ns <= AHEAD * gpu_ns) & (gpu_ns >= least) & (gpu_ns <= most)
    return int(cpu_ns[ahead].min()) if ahead.any() else None
