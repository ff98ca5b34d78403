"""How much longer padded samples get with more of them in a batch."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT

from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.detect.batches.longest_samples import SAME, longer_batches, of_lengths


def test_a_batch_is_as_long_as_the_longest_of_those_that_it_is_made_of():
    # With lengths spread evenly over 0 to 1, the longest of k is k/(k + 1) long on average, and a single one a half.
    lengths = np.linspace(1, 1000, 1000)
    for times in (2, 4, 8):
        assert of_lengths(lengths, times).tokens == pytest.approx(2 * times / (times + 1), rel=0.01)


def test_lengths_are_rarely_new_where_most_batches_reach_the_longest_one():
    lengths = np.append(np.arange(100, 120.0), np.full(20, 120.0))
    found = of_lengths(lengths, 8)
    assert found.tokens == pytest.approx(120 / lengths.mean(), rel=0.02)
    assert found.new_shapes < 0.5
    assert of_lengths(np.arange(1.0, 401), 2).new_shapes == pytest.approx(0.9, abs=0.06), "all lengths differ"


def test_samples_of_one_length_stay_as_they_are():
    found = analysis_of(diagnosed(ROOT / "scenarios" / "small_batch" / "recording"))
    assert found is not None
    assert longer_batches(found, 8) == SAME
