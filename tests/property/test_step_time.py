"""The line fitted to the times of steps of unequal work."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.budgets import budget
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.diagnosis.mean_step.baseline import line, step_time

amounts = st.lists(
    st.tuples(st.floats(1e6, 1e9), st.integers(1, 1_000_000)), min_size=3, max_size=40, unique_by=lambda row: row[1]
)


@given(amounts)
@budget(100)
def test_the_line_is_that_of_least_squares(rows):
    """Compared with a plain search: least squares over slopes from 0 on."""
    ns, work = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    start, slope = line(work, ns)
    assert slope >= 0

    def error(start: float, slope: float) -> float:
        return float(np.sum((ns - start - slope * work) ** 2))

    best, scale = error(start, slope), float(np.ptp(ns)) + 1
    for k in (-1.0, -0.1, -1e-3, 1e-3, 0.1, 1.0):
        tilted = slope + k * scale / float(np.ptp(work))
        assert best <= error(start + k * scale, slope) * (1 + 1e-6) + 1
        if tilted >= 0:
            centred = float(np.mean(ns - tilted * work))
            assert best <= error(centred, tilted) * (1 + 1e-6) + 1
    # And with numpy's own, where its slope is allowed.
    theirs = np.polyfit(work - work.mean(), ns, 1)
    assert slope == pytest.approx(max(theirs[0], 0), rel=1e-6, abs=1e-6 * scale)


@given(st.integers(1, 10**9), st.integers(0, 10**5), st.lists(st.integers(100, 1000), min_size=4, max_size=20))
@budget(100)
def test_an_exact_line_is_found(start, slope, lengths):
    work = np.array(lengths, np.float64)
    target = float(work.mean())
    found = step_time(start + slope * work, work, target)
    if found is None:
        return
    expected = start + slope * target
    assert found.ns == pytest.approx(expected, rel=1e-6 if found.fitted else 0.11, abs=1)
    assert found.low_ns <= found.ns <= found.high_ns
