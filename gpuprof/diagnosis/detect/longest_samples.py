"""How much longer padded samples get with more of them in a batch, and how often a batch then has a new shape.

A batch is padded to its longest sample. One of k times the samples is as long as the longest of k of the recorded
batches, where these are drawn alike: the lengths of the timed steps say how long that is, without an assumption about
the distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuprof.tracefile.trace import F64
from gpuprof.units import Assumed, Batches, Convention, Draws, Seed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_BATCHES: Assumed[Batches] = 12
"""Timed batches from which their lengths say something."""
EQUAL_LENGTHS_SPREAD: Assumed[Share] = 0.02
"""Standard deviation of the lengths, as a share of their mean, below which they are all the same."""
GROUPED = ("length", "bucket", "group")
"""Samplers with one of these in their names put samples of a like length together."""
DRAWS: Assumed[Draws] = 400
SEED: Convention[Seed] = 7


class Longer(NamedTuple):
    """Of batches of more samples, relative to the recorded ones."""

    tokens: float
    """Of a sample, padding included."""
    new_shapes: float
    """Batches whose length was not there before, as a share of all."""


SAME = Longer(1.0, 1.0)


def longer_batches(case: Analysis, factor: float) -> Longer:
    """With `factor` times the samples in a batch; SAME where nothing is padded, lengths are alike, or not known."""
    lengths = _lengths(case)
    times = round(factor)
    return SAME if lengths is None or times < 2 else of_lengths(lengths, times)


def of_lengths(lengths: F64, times: int) -> Longer:
    """For lengths of batches; the longest of `times` of them, by all ways to draw these."""
    ordered, n = np.sort(lengths), len(lengths)
    ends = (np.arange(n + 1) / n) ** times
    longest = float((np.diff(ends) * ordered).sum())
    chance = np.random.default_rng(SEED)
    drawn = chance.choice(lengths, (DRAWS, n, times))
    before, after = (_distinct(rows) for rows in (drawn[:, :, 0], drawn.max(axis=2)))
    return Longer(longest / float(lengths.mean()), min(after / before, 1.0))


def _distinct(rows: F64) -> float:
    """Different values in a row, mean."""
    ordered = np.sort(rows, axis=1)
    return float(1 + (np.diff(ordered, axis=1) > 0).sum(axis=1).mean())


def _lengths(case: Analysis) -> F64 | None:
    """Tokens of a sample of each timed batch, its padding included; None where they are alike, unpadded, or a step has
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
