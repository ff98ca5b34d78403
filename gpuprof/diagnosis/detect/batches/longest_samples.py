"""How much longer padded samples get in larger batches, and how often a larger batch has a new shape.

A batch is padded to its longest sample. A batch of k times the samples is as long as the longest of k recorded batches,
if batches are drawn independently: the lengths of the timed steps give that length without an assumption about the
distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuprof.tracefile.trace import F64
from gpuprof.units import Assumed, Batches, Convention, Draws, Seed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_BATCHES: Assumed[Batches] = 12
"""Fewest timed batches whose lengths are used."""
EQUAL_LENGTHS_SPREAD: Assumed[Share] = 0.02
"""Lengths whose standard deviation is below this share of their mean count as equal."""
GROUPED = ("length", "bucket", "group")
"""Samplers with one of these in their names group samples of similar length."""
DRAWS: Assumed[Draws] = 400
SEED: Convention[Seed] = 7


class Longer(NamedTuple):
    """Batches with more samples, relative to the recorded ones."""

    tokens: float
    """Tokens per sample, padding included."""
    new_shapes: float
    """Share of batches whose length has not occurred before."""


SAME = Longer(1.0, 1.0)


def longer_batches(case: Analysis, factor: float) -> Longer:
    """Batches with `factor` times the samples; SAME if nothing is padded, or lengths are equal or unknown."""
    lengths = _lengths(case)
    times = round(factor)
    return SAME if lengths is None or times < 2 else of_lengths(lengths, times)


def of_lengths(lengths: F64, times: int) -> Longer:
    """The result for given lengths of batches: the longest of `times` of them, over all ways to draw them."""
    ordered, n = np.sort(lengths), len(lengths)
    ends = (np.arange(n + 1) / n) ** times
    longest = float((np.diff(ends) * ordered).sum())
    chance = np.random.default_rng(SEED)
    drawn = chance.choice(lengths, (DRAWS, n, times))
    before, after = (_distinct(rows) for rows in (drawn[:, :, 0], drawn.max(axis=2)))
    return Longer(longest / float(lengths.mean()), min(after / before, 1.0))


def _distinct(rows: F64) -> float:
    """Mean number of distinct values per row."""
    ordered = np.sort(rows, axis=1)
    return float(1 + (np.diff(ordered, axis=1) > 0).sum(axis=1).mean())


def _lengths(case: Analysis) -> F64 | None:
    """Tokens per sample of each timed batch, padding included; None if they are equal or unpadded, or if a step has
    several batches."""
    run, folder = case.run, case.folder
    if run is None or folder is None or not case.trains_on_tokens:
        return None
    sampler = str((run.loader or {}).get("sampler") or "").lower()
    if any(word in sampler for word in GROUPED):
        return None
    steps = folder.steps
    known = (steps.rank == folder.rank) & (steps.tokens > 0) & (steps.samples > 0) & (steps.real_tokens > 0)
    single = known & (steps.micro_steps <= 1)
    if (
        single.sum() < FEWEST_BATCHES
        or single.sum() < known.sum()
        or (steps.real_tokens[single] >= steps.tokens[single]).all()
    ):
        return None
    found = steps.tokens[single] / steps.samples[single]
    return found if found.std() > EQUAL_LENGTHS_SPREAD * found.mean() else None
