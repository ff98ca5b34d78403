"""Memory peaks of a run's steps: the pass with the highest one, and the line of peak over tokens.

The allocator only reports its highest peak so far. A step that raised it is a point (tokens of its pass, its peak); any
other step only shows that it stayed below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.runfile import STAGES
from gpuprof.tracefile.run_folder.run import StepColumns
from gpuprof.tracefile.trace import ABSENT, F64, I64
from gpuprof.units import Assumed, Entries, Ratio, Share

_TIMED = ("baseline_free", "baseline_sync", "after")
"""Stages whose lines have the tokens of their own step. While a run settles, loaders that fetch a batch ahead may
report the next step's tokens; under a profiler tensors live longer."""
FEWEST_POINTS: Assumed[Entries] = 3
"""Fewest points for a line: two always lie on one."""
LEAST_SPREAD: Assumed[Ratio] = 1.3
"""Smallest ratio of the longest to the shortest pass: with less, extrapolating the line is too uncertain."""
MOST_MISS: Assumed[Share] = 0.03
"""Largest error of a point, as a share of the peak, for the points to lie on a line."""


@dataclass(frozen=True, slots=True)
class PassPeaks:
    """Peaks of one rank, without profiler."""

    tokens: float | None
    """Tokens of the pass with the highest peak; if that was not a timed step, of the longest pass that stayed below.
    None if tokens were not counted."""
    fixed_bytes: float | None
    """Part of the peaks above `allocated_bytes` that does not depend on tokens; None if the peaks lie on no line."""


def pass_peaks(steps: StepColumns, rank: int) -> PassPeaks:
    """The peaks of a run's steps by tokens of a forward pass, padding included."""
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
    """Steps whose peak is above all earlier ones; the first does not count, since earlier peaks are unknown."""
    before = np.maximum.accumulate(np.append(np.int64(0), peak))[:-1]
    return (peak != ABSENT) & (before > 0) & (peak > before)


def _fixed(tokens: F64, above: I64) -> float | None:
    """Value of the line through these points at 0 tokens; None if they lie on no line."""
    if len(tokens) < FEWEST_POINTS or tokens.max() < LEAST_SPREAD * tokens.min():
        return None
    slope, fixed = np.polyfit(tokens, above.astype(np.float64), 1)
    missed = np.abs(slope * tokens + fixed - above).max()
    if slope <= 0 or missed > MOST_MISS * above.max():
        return None
    return float(max(fixed, 0.0))
