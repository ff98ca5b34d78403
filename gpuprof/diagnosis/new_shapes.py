"""Whether steps that meet shapes for the first time take longer: libraries plan or compile for each new shape.

Estimated from all steps that were timed without a profiler: those with new lengths against those with known ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuprof.tracefile.run import RunFolder
from gpuprof.tracefile.trace import ABSENT, F64, I64, Mask
from gpuprof.units import Assumed, Ratio, Share, Steps

FEWEST_OF_EITHER: Assumed[Steps] = 3
"""Steps of either kind, new and known shapes, from which on they are compared."""
NEW_SHAPES_LONGER: Assumed[Ratio] = 1.15
"""Steps with new shapes take at least this many times as long, in the middle."""
LONGER_PAIRS: Assumed[Share] = 0.75
"""Share of pairs, one step with new shapes and one without, in which the first is the longer: 0.5 if they do not
differ."""
RECURRING_SHARE: Assumed[Share] = 0.2
"""Share of the later steps that still meet new shapes, from which on it is no cost of the beginning."""


@dataclass(frozen=True, slots=True)
class NewShapes:
    """What new shapes cost."""

    extra_ns: float
    """By how much a step with new shapes is longer, in the middle."""
    longest_known_ns: float
    """The longest step without new shapes."""
    mean_ns: float
    """By how much a step with new shapes is longer on average: some compile a kernel for a second or two."""
    steps: int
    """Timed steps that had new shapes."""
    timed: int
    share: float
    """Of the later half of the timed steps those that had new shapes."""

    @property
    def recurs(self) -> bool:
        """Whether it goes on, rather than being over after the first steps."""
        return self.share >= RECURRING_SHARE

    def due(self, ns: F64, excess_ns: F64) -> F64:
        """What of their excess steps with new shapes owe to these, ns: up to what is usual of such steps; all of it
        where a step takes longer than every step without new shapes."""
        return np.where(ns > self.longest_known_ns, excess_ns, excess_ns.clip(max=self.extra_ns)).clip(0)

    def without(self, ns: F64, first: Mask) -> F64:
        """How long steps take for which every shape was seen before: NaN for those with new shapes where at least
        FEWEST_OF_EITHER others are known, else these without what new shapes usually add.

        ns: per step; first: whether it had new shapes.
        """
        known = np.isfinite(ns) & ~first
        if np.count_nonzero(known) >= FEWEST_OF_EITHER:
            return np.where(first, np.nan, ns)
        return np.where(first, np.maximum(ns - self.extra_ns, 1.0), ns)


def new_shapes(folder: RunFolder, rows: I64, ns: F64) -> NewShapes | None:
    """What new shapes cost the timed steps; None where they cost nothing, or nothing is known of shapes.

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
    """Per step of the run whether it met a shape that no step of its rank had before; None where that is not known.

    Recorders before 0.2 wrote down only how many samples and tokens a step had.
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
