"""Useful model FLOPs: without padding, and without attention scores that a mask discards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuprof.costs.dtypes import DTYPES, UNKNOWN
from gpuprof.costs.roofline import Roofline
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.attention.masked_scores import masked_kernels, useful_share
from gpuprof.timeline.phases import BACKWARD, FORWARD


def with_useful_flops(case: Analysis, roof: Roofline) -> Roofline:
    """The roofline with the model FLOPs of useful work, which MFU counts; HFU counts everything that ran. Unchanged if
    the useful share is unknown.

    For attention with a mask, the useful share is that of scores within one document; for the rest of the model it is
    that of non-padding tokens.
    """
    work = case.run.work if case.run else None
    if work is None or not case.trains_on_tokens or not roof.model_flops:
        return roof
    real, useful = work.real_share, useful_share(case)
    if (real is None or real >= 1) and (useful is None or useful >= 1):
        return roof
    timeline, found = case.timeline, roof.work
    passes = np.isin(timeline.phase, (FORWARD, BACKWARD))
    attention = case.category("attention")
    lost = np.where(passes & ~attention, 1 - (real or 1.0), 0.0)
    if useful is not None:
        half = 0.5 if case.stack.is_causal else 1.0
        lost = np.where(passes & masked_kernels(case), 1 - useful * half, lost)
    flops = np.nan_to_num(found.flops - found.repeated_flops) * lost
    rows = timeline.members
    known = rows[(found.dtype[rows] != UNKNOWN) & (flops[rows] > 0)]
    shares = len(timeline.steps.start_ns) * max(len(timeline.devices), 1)
    wasted = np.bincount(found.dtype[known], weights=flops[known], minlength=len(DTYPES)) / shares
    left = {
        dtype: max(all_of_it - float(wasted[DTYPES.index(dtype)]), 0.0) for dtype, all_of_it in roof.model_flops.items()
    }
    return replace(roof, model_flops=left)
