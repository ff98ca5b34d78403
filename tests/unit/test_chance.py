"""How likely a predicted gain is, and its expected value, compared with numerical draws from its distribution."""

from __future__ import annotations

import numpy as np
import pytest

from gpuprof.diagnosis.fixes.chance import measured_odds, probability, time_left, with_odds
from gpuprof.value_range import Range

GAINS = [Range(0.89, 1.25, 1.57), Range(0.97, 1.79, 2.06), Range(1.03, 1.05, 1.4), Range(0.8, 0.98, 1.1)]


def draws(gain: Range) -> np.ndarray:
    """A million gains: the logarithm is normal, with a different standard deviation on each side."""
    score = np.random.default_rng(1).standard_normal(1_000_000)
    side = np.where(score > 0, np.log(gain.high / gain.expected), np.log(gain.expected / gain.low))
    return gain.expected * np.exp(score / 1.2815516 * side)


@pytest.mark.parametrize("gain", GAINS)
def test_it_is_as_likely_as_draws_say(gain: Range):
    for least in (0.9, 1.0, 1.02, 1.3):
        assert probability(gain, least) == pytest.approx(np.mean(draws(gain) >= least), abs=2e-3)


@pytest.mark.parametrize("gain", GAINS)
def test_a_tenth_lies_below_the_interval(gain: Range):
    assert probability(gain, gain.low) == pytest.approx(0.9, abs=1e-6)
    assert probability(gain, gain.high) == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize("gain", GAINS)
def test_the_time_left_is_the_mean_of_draws(gain: Range):
    assert time_left(gain) == pytest.approx(np.mean(1 / draws(gain)), rel=1e-2)


def test_what_is_known_exactly_is_certain():
    sure = Range(1.1, 1.1, 1.1)
    assert probability(sure, 1.02) == 1.0 and probability(sure, 1.2) == 0.0
    assert time_left(sure) == pytest.approx(1 / 1.1)


@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("odds", [0.45, 0.7, 0.95, 1.0])
def test_what_may_not_work_is_a_mixture_with_no_change(gain: Range, odds: float):
    works = np.random.default_rng(2).random(1_000_000) < odds
    low, middle, high = np.quantile(np.where(works, draws(gain), 1.0), (0.1, 0.5, 0.9))
    found = with_odds(gain, odds)
    assert (found.low, found.expected, found.high) == pytest.approx((low, middle, high), rel=5e-3)


def test_measured_odds_leave_a_part_of_the_assumed_doubt():
    found = [measured_odds(assumed) for assumed in (0.0, 0.5, 0.8, 1.0)]
    assert found[-1] == 1.0 and found == sorted(found)
    assert 0.8 < found[2] < 1.0
