"""Number of sequence lengths that a training has yet to see, from the distribution of those seen so far."""

from __future__ import annotations

import numpy as np

from gpuprof.tracefile.trace import F64, I64
from gpuprof.units import Assumed, Published, Ratio, Steps

FEWEST_LENGTHS: Assumed[Steps] = 8
"""Fewest steps of known length for a distribution."""
BANDWIDTHS_BEYOND: Assumed[Ratio] = 4.0
"""Range of the estimated distribution beyond the lengths seen, in bandwidths."""
SILVERMAN: Published[tuple[Ratio, Ratio, Ratio]] = (0.9, 1.34, -0.2)
"""Silverman's rule of thumb (Density Estimation, 1986, eq. 3.31): bandwidth over spread, interquartile range over
standard deviation, exponent of the number of values."""


def unseen_lengths(lengths: I64, steps: int) -> float | None:
    """Expected number of new lengths in the next `steps` steps; None if too few lengths are known.

    lengths: of the steps so far, in tokens per sample. Their distribution is estimated with a Gaussian kernel
    (bandwidth by Silverman's rule, at least one grid step) on the grid of lengths that occur (multiples of 8, say). A
    length not yet seen that has probability p comes up in those steps with probability 1 - (1 - p)^steps."""
    lengths = lengths[lengths > 0]
    if len(lengths) < FEWEST_LENGTHS or steps <= 0:
        return None if len(lengths) < FEWEST_LENGTHS else 0.0
    grid = max(int(np.gcd.reduce(lengths)), 1)
    cells = (lengths // grid).astype(np.float64)
    width = max(_bandwidth(cells), 1.0) if np.ptp(cells) else 0.0
    if not width:
        return 0.0
    places = np.arange(
        max(np.floor(cells.min() - BANDWIDTHS_BEYOND * width), 1), np.ceil(cells.max() + BANDWIDTHS_BEYOND * width) + 1
    )
    density = np.exp(-0.5 * ((places[:, None] - cells[None, :]) / width) ** 2).sum(axis=1)
    probability = density / density.sum()
    unseen = ~np.isin(places, cells)
    return float((1 - (1 - probability[unseen]) ** steps).sum())


def _bandwidth(values: F64) -> float:
    factor, per_deviation, exponent = SILVERMAN
    low, high = np.percentile(values, (25, 75))
    spread = min(float(values.std(ddof=1)), float(high - low) / per_deviation) or float(values.std(ddof=1))
    return factor * spread * len(values) ** exponent
