"""Interval algebra, compared with sets of integers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.timeline.intervals import Cover, Intervals, clip, complement, join, union

spans = st.lists(st.tuples(st.integers(-40, 40), st.integers(-5, 25)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


def make(pairs: list[tuple[int, int]]) -> Intervals:
    return union(np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64))


def points(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for a, b in pairs for t in range(a, b)}


def shown(intervals: Intervals) -> set[int]:
    return points(list(zip(intervals.start.tolist(), intervals.end.tolist(), strict=True)))


@given(spans)
def test_union_covers_the_same_points_without_overlap(pairs):
    result = make(pairs)
    assert shown(result) == points(pairs)
    assert result.total == len(points(pairs))
    assert np.all(result.start[1:] > result.end[:-1])


@given(spans, spans)
def test_join_is_the_union_of_unions(a, b):
    assert shown(join(make(a), make(b))) == points(a) | points(b)


@given(spans, st.integers(-45, 45), st.integers(0, 40))
def test_clip_and_complement_part_a_window(pairs, low, length):
    window = set(range(low, low + length))
    inside, outside = clip(make(pairs), low, low + length), complement(make(pairs), low, low + length)
    assert shown(inside) == points(pairs) & window
    assert shown(outside) == window - points(pairs)


@given(spans, st.lists(st.integers(-60, 60), min_size=1, max_size=10))
def test_cover_counts_the_points_before(pairs, moments):
    covered = Cover(make(pairs)).before(np.array(moments, np.int64))
    assert covered.tolist() == [len({p for p in points(pairs) if p < t}) for t in moments]


def test_nanoseconds_beyond_float_precision_stay_exact():
    base = 1_700_000_000_000_000_001
    result = make([(base, base + 1), (base + 2, base + 3)])
    assert result.total == 2
    assert Cover(result).before(np.array([base + 3])).tolist() == [2]
