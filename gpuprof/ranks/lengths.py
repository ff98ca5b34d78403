"""Whether steps differ because batches have different lengths: then forward and backward passes vary together."""

from __future__ import annotations

import numpy as np

from gpuprof.ranks.digest_data import BACKWARD, FORWARD, Floats
from gpuprof.units import Assumed, Share, Steps

FEWEST_CORRELATED_STEPS: Assumed[Steps] = 8
"""Fewest steps over all ranks for a correlation: with fewer, 0.7 can be chance."""
LEAST_SPREAD: Assumed[Share] = 0.002
"""A smaller relative standard deviation of passes counts as none."""


def lengths_share(work_ns: Floats) -> float | None:
    """The share of the variance of backward passes that forward passes explain, over all ranks and steps, each relative
    to its rank's mean (r²; 0 if the correlation is negative). None with too few steps, or without such work.

    `work_ns`: [ranks, steps, WORK]. A longer batch takes longer in both directions; a garbage collection, a checkpoint
    or a busy machine does so in one. "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI
    '25) recognises batches of different length by the same correlation.
    """
    both = work_ns[:, :, [FORWARD, BACKWARD]]
    mean = both.mean(axis=1, keepdims=True)
    doing = (mean > 0).all(axis=(1, 2))
    each = (both[doing] / mean[doing] - 1).reshape(-1, 2)
    if len(each) < FEWEST_CORRELATED_STEPS or both.shape[1] < 2:
        return None
    if (each.std(axis=0) < LEAST_SPREAD).any():
        return 0.0
    return float(max(np.corrcoef(each.T)[0, 1], 0.0) ** 2)
