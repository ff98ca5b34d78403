"""A treemap's rectangles: their areas match the sizes, they lie inside the box and never overlap."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuprof.report.page.treemap import Box, squarified

WHOLE = Box(0.0, 0.0, 100.0, 48.0)


@given(st.lists(st.integers(1, 10**11), min_size=1, max_size=20))
@example([908064768, 10**11, 1])  # what is left for the last is lost in rounding
@example([10**11, 10**11, 1, 1, 1])
def test_rectangles_fill_the_box(sizes):
    found = squarified(sizes, WHOLE)
    assert len(found) == len(sizes)
    for size, box in zip(sizes, found, strict=True):
        assert box.width * box.height == pytest.approx(4800 * size / sum(sizes), rel=1e-6, abs=1e-6)
        assert box.x >= -1e-9 and box.y >= -1e-9 and box.x + box.width <= 100.001 and box.y + box.height <= 48.001
    for one, other in itertools.combinations(found, 2):
        wide = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
        high = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
        assert wide <= 1e-6 or high <= 1e-6


def test_nothing_has_no_rectangles():
    assert squarified([0, 0], WHOLE) == [] and squarified([1], Box(0, 0, 0, 1)) == []
