"""What a run's own peaks tell: which pass made the highest, and the line that those of other passes lie on.

The allocator only tells its highest peak so far. A step that raised it is a point (tokens of its pass, its peak); any
other step only says that it stayed below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.runfile import STAGES
from gpuprof.tracefile.run import StepColumns
from gpuprof.tracefile.trace import ABSENT, F64, I64
from gpuprof.units import Assumed, Entries, Ratio, Share

_TIMED = ("baseline_free", "baseline_sync", "after")
"""Stages whose lines have the tokens of their own step. While a run settles, loaders that fetch a batch ahead may have
reported those of the next one; under a profiler tensors live longer."""
FEWEST_POINTS: Assumed[Entries] = 3
"""Two make any line."""
LEAST_SPREAD: Assumed[Ratio] = 1.3
"""The longest of these passes over the shortest: with less between them the line's end is far from what was seen."""
MOST_MISS: Assumed[Share] = 0.03
"""Of the peak: a line that misses a point by more is none."""


@dataclass(frozen=True, slots=True)
class PassPeaks:
    """Of one rank, without profiler."""

    tokens: float | None
    """Of the pass that made the highest peak; where that was none of the timed steps, of the longest that stayed below.
    None where tokens were not counted."""
    fixed_bytes: float | None
    """What the peaks have above `allocated_bytes` whatever the tokens; None where they lie on no line."""


def pass_peaks(steps: StepColumns, rank: int) -> PassPeaks:
    """What the steps of a run tell about peaks by tokens of a forward pass, padding included."""
    rows = np.flatnonzero(steps.rank == rank)
    rows = rows[np.argsort(steps.step[rows], kind="stable")]
    tokens = np.where(steps.tokens[rows] > 0, steps.tokens[rows] / steps.micro_steps[rows].clip(1), np.nan)
    bare = ~np.isnan(tokens) & ~steps.profiled[rows]
    timed = bare & np.isin(steps.stage[rows], [STAGES.index(stage) for stage in _TIMED])
    peak, allocated = steps.peak_bytes[rows], steps.allocated_bytes[rows]
    raised = np.flatnonzero(timed & _raises(peak) & (allocated != ABSENT))
    if len(raised):
        return PassPeaks(float(tokens[raised[-1]]), _fixed(tokens[raised], (peak - allocated)[raised]))
    below = timed if timed.any() else bare
    return PassPeaks(float(tokens[below].max()) if below.any() else None, None)


def _raises(peak: I64) -> np.ndarray:
    """Steps whose peak is above that of all before; the first says nothing, for what was before it is not known."""
    before = np.maximum.accumulate(np.append(np.int64(0), peak))[:-1]
    return (peak != ABSENT) & (before > 0) & (peak > before)


def _fixed(tokens: F64, above: I64) -> float | None:
    """Where the line through these points is at no tokens; None where they lie on none."""
    if len(tokens) < FEWEST_POINTS or tokens.max() < LEAST_SPREAD * tokens.min():
        return None
    slope, fixed = np.polyfit(tokens, above.astype(np.float64), 1)
    missed = np.abs(slope * tokens + fixed - above).max()
    if slope <= 0 or missed > MOST_MISS * above.max():
        return None
    return float(max(fixed, 0.0))
