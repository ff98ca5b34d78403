"""The rank-sum test of two recordings' steps, compared with counting, and when it gives no answer."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof.diagnosis.comparison.significance import (
    arrangements,
    correlation,
    doubled_ranks,
    rank_sum,
)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.lists(st.integers(0, 6), min_size=1, max_size=5))
@settings(deadline=None)
def test_the_exact_test_counts_every_arrangement(a, b):
    values = np.array([*a, *b], np.float64)
    ranks, n = doubled_ranks(values), len(a)
    sums = [int(ranks[list(chosen)].sum()) for chosen in itertools.combinations(range(len(values)), n)]
    counts = arrangements(ranks, n)
    assert all(counts[s] == sums.count(s) for s in set(sums)) and counts.sum() == len(sums)
    middle = n * (len(values) + 1)
    off = abs(int(ranks[:n].sum()) - middle)
    found = rank_sum(values[:n], values[n:])
    assert found is not None and found.exact
    assert found.p == pytest.approx(sum(abs(s - middle) >= off for s in sums) / len(sums))


def test_the_normal_distribution_takes_over_smoothly():
    rng = np.random.default_rng(1)
    a, b = rng.normal(100, 5, 30), rng.normal(103, 5, 30)
    exact, near = rank_sum(a, b), rank_sum(a, np.append(b, np.median(b)))
    assert exact is not None and near is not None
    assert exact.exact and not near.exact
    assert near.p == pytest.approx(exact.p, rel=0.5)
    both = rank_sum(np.full(40, 3.0), np.full(40, 3.0))
    assert both is not None and both.p == 1


def test_few_steps_show_nothing():
    three = rank_sum(np.arange(3.0), np.arange(3.0) + 10)
    four = rank_sum(np.arange(4.0), np.arange(4.0) + 10)
    assert three is not None and four is not None
    assert three.least > 0.05 > four.least == four.p
    assert rank_sum(np.empty(0), np.arange(3.0)) is None


def test_neighbouring_steps_that_resemble_each_other():
    assert correlation(np.arange(20.0)) > 0.8  # type: ignore[operator]
    assert correlation(np.tile([1.0, 2.0], 10)) < -0.8  # type: ignore[operator]
    assert correlation(np.ones(20)) is None and correlation(np.arange(4.0)) is None
