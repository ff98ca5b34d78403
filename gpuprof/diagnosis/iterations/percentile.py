"""Ends of the times that most iterations take."""

from __future__ import annotations

from gpuprof.units import Assumed, Iterations

FEWEST_OF_PERCENTILE: Assumed[Iterations] = 5
"""With fewer iterations, minimum and maximum are shown instead of percentiles."""


def percentile(each: list[int], share: float) -> int:
    """The value below which a share of the values lie; of few values the smallest, or the largest from half on."""
    if len(each) < FEWEST_OF_PERCENTILE:
        return min(each) if share < 0.5 else max(each)
    return sorted(each)[min(int(share * len(each)), len(each) - 1)]
