"""Whether steps of two runs differ by more than their own scatter: the Mann-Whitney-Wilcoxon rank-sum test.

The test assumes nothing about the distribution of step times, works with a handful of steps, and is deterministic. It
cannot account for two things: steps of one process are not independent, and another process of the same program may be
a few per cent faster or slower for no reason in the program.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpuprof.diagnosis.comparison.comparison import ComparedWork, Significance
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.run.run_facts import unprofiled_steps
from gpuprof.tracefile.trace import F64, I64
from gpuprof.units import Assumed, Convention, Share, Steps

SIGNIFICANT_P: Convention[Share] = 0.05
"""p below which a difference is significant."""
LIKELY_P: Convention[Share] = 0.2
"""p below which a large difference is called likely, though it may be scatter."""
MOST_EXACT_STEPS: Assumed[Steps] = 60
"""Up to this total number of steps p is exact, by counting arrangements; beyond it the normal approximation is used."""
FEWEST_CORRELATED: Assumed[Steps] = 8
"""Fewest steps whose correlation with the next is known."""
CORRELATED: Assumed[Share] = 0.3
"""Correlation of a step with the next above which a note says that p is too small."""


def significance(a: Diagnosis, b: Diagnosis, work: ComparedWork | None = None) -> Significance | None:
    """The test over unprofiled steps if both have some, else over recorded ones; None without steps."""
    of, before, after = "unprofiled", unprofiled(a), unprofiled(b)
    if not (len(before) and len(after)):
        of, before, after = "recorded", recorded(a), recorded(b)
    ranked = rank_sum(before, after)
    if ranked is None:
        return None
    decidable = ranked.least < SIGNIFICANT_P
    other_work = work is not None and not work.equal and work.a_ns_per is not None
    each = rank_sum(before / work.a, after / work.b) if work and other_work else None
    return Significance(
        of=of,
        a_steps=len(before),
        b_steps=len(after),
        a_median_ns=_median(before),
        b_median_ns=_median(after),
        p=ranked.p,
        significant=ranked.p < SIGNIFICANT_P if decidable else None,
        exact=ranked.exact,
        correlation=max((c for c in map(correlation, (before, after)) if c is not None), default=None),
        p_each=each.p if each else None,
    )


def _median(ns: F64) -> int:
    return round(float(np.median(ns)))


def unprofiled(diagnosis: Diagnosis) -> F64:
    """Durations in ns of the steps timed without a profiler, in order, scaled to the work of the recorded ones; empty
    if there are none, or if the user gave the step."""
    if diagnosis.folder is None or diagnosis.run is None or diagnosis.steps is None:
        return np.empty(0, np.float64)
    return unprofiled_steps(diagnosis.folder, diagnosis.steps.unprofiled_ns)


def recorded(diagnosis: Diagnosis) -> F64:
    """Durations in ns of the recorded steps, under the profiler."""
    return np.array(diagnosis.steps.each_ns if diagnosis.steps else (), np.float64)


# -- the test


@dataclass(frozen=True, slots=True)
class Ranked:
    """The outcome of one test."""

    p: float
    """Probability of a difference at least this large, in either direction, if there is none."""
    exact: bool
    """Whether all arrangements were counted."""
    least: float
    """The smallest p that this number of steps can give."""


def rank_sum(a: F64, b: F64) -> Ranked | None:
    """The two-sided test of two samples; None where either is empty."""
    n, m = len(a), len(b)
    if not n or not m:
        return None
    doubled = doubled_ranks(np.concatenate([a, b]))
    mine = int(doubled[:n].sum())
    if n + m <= MOST_EXACT_STEPS:
        counts = arrangements(doubled, n)
        off = abs(2 * mine - n * (2 * (n + m + 1)))
        sums = np.arange(len(counts))
        far = np.abs(2 * sums - n * (2 * (n + m + 1))) >= off
        total = float(counts.sum())
        return Ranked(float(counts[far].sum()) / total, True, 2.0 / math.comb(n + m, n))
    _, ties = np.unique(doubled, return_counts=True)
    size = n + m
    tied = float((ties.astype(np.float64) ** 3 - ties).sum()) / (size * (size - 1))
    variance = n * m / 12 * (size + 1 - tied)
    if variance <= 0:
        return Ranked(1.0, False, 0.0)
    away = max(abs(mine / 2 - n * (size + 1) / 2) - 0.5, 0.0)
    return Ranked(math.erfc(away / math.sqrt(2 * variance)), False, 0.0)


def doubled_ranks(values: F64) -> I64:
    """Twice the rank of each value, from 2 up; equal values have the middle of their ranks, so halves occur."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values, side="left")
    upto = np.searchsorted(ordered, values, side="right")
    return below + upto + 1


def arrangements(doubled: I64, n: int) -> F64:
    """Number of ways to choose n of the ranks, by the sum of their doubled ranks."""
    most = int(np.sort(doubled)[-n:].sum())
    ways = np.zeros((n + 1, most + 1), np.float64)
    ways[0, 0] = 1
    for rank in doubled.tolist():
        if rank <= most:
            ways[1:, rank:] += ways[:-1, : most + 1 - rank].copy()
    return ways[n]


def correlation(values: F64) -> float | None:
    """Correlation of each step with the next; None for few steps, or if all steps are equal."""
    if len(values) < FEWEST_CORRELATED:
        return None
    centred = values - values.mean()
    square = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / square if square > 0 else None
