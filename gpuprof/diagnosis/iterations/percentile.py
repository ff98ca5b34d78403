"""Ends of the times that most iterations take."""

from __future__ import annotations

from gpuprof.units import Assumed, Convention, Iterations, Share

FEWEST_OF_PERCENTILE: Assumed[Iterations] = 5
"""With fewer iterations, minimum and maximum are shown instead of percentiles."""
ENDS: Convention[tuple[Share, Share]] = (0.1, 0.9)
"""Shares of the values that lie below the ends of what most take."""


def percentile(each: list[int], share: float) -> int:
    """The value below which a share of the values lie; of few values the smallest, or the largest from half on."""
    if len(each) < FEWEST_OF_PERCENTILE:
        return min(each) if share < 0.5 else max(each)
    return sorted(each)[min(int(share * len(each)), len(each) - 1)]


def usual_range(each: list[int]) -> tuple[int, int]:
    """The ends of what most of the values are."""
    low, high = (percentile(each, share) for share in ENDS)
    return low, high
