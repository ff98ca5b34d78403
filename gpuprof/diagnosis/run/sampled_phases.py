"""The parts of a step, from the stretch that was sampled without a profiler."""

from __future__ import annotations

import itertools

import numpy as np

from gpuprof.replay.unprofiled.phase_fit import Parts
from gpuprof.tracefile.run_folder.samples import HostSamples
from gpuprof.units import Assumed, Share, Steps

SAME_STEP: Assumed[Share] = 0.25
"""Largest difference between the sampled and the timed step, as a share; sampling slows the step a little."""
MOST_INPUT_WAIT: Assumed[Share] = 0.1
"""Largest share of the sampled steps that waits for batches: the replayed step contains only the usual wait."""
FEWEST_SAMPLED_STEPS: Assumed[Steps] = 3
"""Fewest steps for a usual one."""


def sampled_parts(samples: HostSamples | None, step_ns: float | None) -> Parts | None:
    """Shares of the parts of the usual sampled step, by its marks; None without marks, or if the sampled step is not
    like the timed one of `step_ns`."""
    if samples is None or step_ns is None or samples.steps < FEWEST_SAMPLED_STEPS:
        return None
    names, at = [name for name, _ in samples.marks], np.array([ns for _, ns in samples.marks], np.float64)

    def spans(begin: str, end: str) -> list[tuple[float, float]]:
        pairs = zip(names, names[1:], at, at[1:], strict=False)
        return [(float(a), float(b)) for one, other, a, b in pairs if (one, other) == (begin, end)]

    passes, ends = spans("backward", "backward_end"), samples.steps_ns.astype(np.float64)
    waited = sum(b - a for a, b in spans("data", "data_end"))
    if abs(float(np.median(np.diff(ends))) / step_ns - 1) > SAME_STEP or waited > MOST_INPUT_WAIT * ends[-1]:
        return None
    each = []
    for begin, end in itertools.pairwise(ends.tolist()):
        mine = [(a, b) for a, b in passes if begin <= a and b <= end]
        if mine:
            within, after = sum(b - a for a, b in mine), end - mine[-1][1]
            each.append((end - begin - within - after, within, after))
    if len(each) < FEWEST_SAMPLED_STEPS:
        return None
    found = np.median(np.array(each), axis=0)
    return Parts(*(found / found.sum()).tolist()) if (found > 0).all() else None
