"""Whether steps with shapes seen for the first time take longer: libraries plan or compile for each new shape.

Estimated from all steps timed without a profiler, by comparing those with new lengths to those with known ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.tracefile.trace import ABSENT, F64, I64, Mask
from gpuprof.units import Assumed, Ratio, Share, Steps

FEWEST_OF_EITHER: Assumed[Steps] = 3
"""Fewest steps with new shapes, and with known shapes, that are compared."""
NEW_SHAPES_LONGER: Assumed[Ratio] = 1.15
"""Smallest ratio of the median step with new shapes to the median step without."""
LONGER_PAIRS: Assumed[Share] = 0.75
"""Smallest share of pairs (one step with new shapes, one without) in which the first is longer; 0.5 means no
difference."""
RECURRING_SHARE: Assumed[Share] = 0.2
"""If at least this share of the later steps still has new shapes, the cost recurs and is not one-off."""


@dataclass(frozen=True, slots=True)
class NewShapes:
    """Cost of new shapes."""

    extra_ns: float
    """Median step with new shapes − median step without."""
    longest_known_ns: float
    """The longest step without new shapes."""
    mean_ns: float
    """Mean time that new shapes add to a step that has some: some steps compile a kernel for a second or two."""
    steps: int
    """Number of timed steps with new shapes."""
    timed: int
    share: float
    """Share of steps with new shapes in the later half of the timed steps."""

    @property
    def recurs(self) -> bool:
        """Whether new shapes continue after the first steps."""
        return self.share >= RECURRING_SHARE

    def due(self, ns: F64, excess_ns: F64) -> F64:
        """Part of the excess of steps with new shapes that new shapes cause, ns: at most what is usual for such steps,
        or all of it if a step takes longer than every step without new shapes."""
        return np.where(ns > self.longest_known_ns, excess_ns, excess_ns.clip(max=self.extra_ns)).clip(0)

    def without(self, ns: F64, first: Mask) -> F64:
        """Step times as if every shape had been seen before: NaN for steps with new shapes if at least FEWEST_OF_EITHER
        others are known; otherwise those steps minus the usual cost of new shapes.

        ns: per step; first: whether it had new shapes.
        """
        known = np.isfinite(ns) & ~first
        if np.count_nonzero(known) >= FEWEST_OF_EITHER:
            return np.where(first, np.nan, ns)
        return np.where(first, np.maximum(ns - self.extra_ns, 1.0), ns)


def new_shapes(folder: RunFolder, rows: I64, ns: F64) -> NewShapes | None:
    """The cost of new shapes in the timed steps; None if they cost nothing, or if shapes are unknown.

    rows: of the timed steps in the run's columns; ns: how long each took.
    """
    new = first_seen(folder)
    if new is None:
        return None
    known = np.isfinite(ns)
    rows, ns = rows[known], ns[known]
    first = new[rows]
    with_new, without = ns[first], ns[~first]
    if min(len(with_new), len(without)) < FEWEST_OF_EITHER:
        return None
    longer = float((with_new[:, None] > without[None, :]).mean())
    extra = float(np.median(with_new) - np.median(without))
    if longer < LONGER_PAIRS or np.median(with_new) < NEW_SHAPES_LONGER * np.median(without):
        return None
    later = first[len(first) // 2 :]
    found = NewShapes(extra, float(without.max()), extra, int(first.sum()), len(rows), float(later.mean()))
    return replace(found, mean_ns=float(found.due(with_new, with_new - np.median(without)).mean()))


def first_seen(folder: RunFolder) -> Mask | None:
    """Per step of the run whether it had a shape that no earlier step of its rank had; None if unknown.

    Recorders before 0.2 recorded only the number of samples and tokens of a step.
    """
    steps = folder.steps
    if (steps.new_shapes != ABSENT).any():
        return steps.new_shapes > 0
    if not ((steps.tokens > 0) & (steps.samples > 0)).any():
        return None
    found = np.zeros(len(steps), bool)
    seen: set[tuple[int, int, int]] = set()
    for row in np.argsort(steps.step, kind="stable").tolist():
        key = int(steps.rank[row]), int(steps.samples[row]), int(steps.tokens[row])
        found[row] = key not in seen and key[2] > 0
        seen.add(key)
    return found
