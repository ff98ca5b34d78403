"""Parents, innermost spans and own times, compared with plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.report.page.views.nesting_rows import own_ns
from gpuprof.timeline.nesting import ROUNDING_NS, climb, climb_to_open, inherit, nest

spans = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 15)), max_size=25)
"""(thread, start, duration), in UNITs."""
UNIT = 600
"""ns. A span that ends one unit after another may be inside it by rounding; two units are more than that."""


def columns(rows):
    thread = np.array([r[0] for r in rows], np.int32)
    start = np.array([r[1] for r in rows], np.int64) * UNIT
    return thread, start, start + np.array([r[2] for r in rows], np.int64) * UNIT


def latest_earlier(rows, suits) -> list[int]:
    """For each span the last one of its thread before it, by (start, longest first, file order), that satisfies the
    condition, or -1."""
    order = sorted(range(len(rows)), key=lambda i: (rows[i][0], rows[i][1], -rows[i][2], i))
    found = [-1] * len(rows)
    for at, i in enumerate(order):
        thread, start, length = rows[i]
        for j in order[:at]:
            outer_thread, outer_start, outer_length = rows[j]
            outer_end = outer_start + outer_length
            if outer_thread == thread and outer_end > start and suits(outer_end, start + length):
                found[i] = j
    return found


def expected_parents(rows) -> list[int]:
    return latest_earlier(rows, lambda outer_end, end: outer_end * UNIT + ROUNDING_NS >= end * UNIT)


@given(spans)
def test_a_parent_is_the_innermost_span_that_contains_the_whole(rows):
    assert nest(*columns(rows)).parent.tolist() == expected_parents(rows)


@given(spans)
def test_the_chain_from_the_innermost_span_holds_all_that_are_open(rows):
    nesting = nest(*columns(rows))
    assert nesting.begun_in.tolist() == latest_earlier(rows, lambda outer_end, end: True)
    for moment in range(46):
        for lane in range(3):
            at = int(nesting.innermost(np.array([lane], np.int32), np.array([moment * UNIT]))[0])
            chain = set()
            while at >= 0:
                chain.add(at)
                at = int(nesting.begun_in[at])
            still_open = {i for i, (h, s, n) in enumerate(rows) if h == lane and s <= moment < s + n}
            assert {i for i in chain if rows[i][1] + rows[i][2] > moment} == still_open


@given(spans, st.data())
def test_climbing_ends_at_the_nearest_that_may_be(rows, data):
    nesting = nest(*columns(rows))
    stop = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), bool)
    begins = np.array(data.draw(st.lists(st.integers(-1, len(rows) - 1), max_size=30)), np.int64)
    t = np.array([data.draw(st.integers(0, 46)) * UNIT for _ in begins], np.int64)

    def nearest(row, suits) -> int:
        while row >= 0 and not suits(row):
            row = int(nesting.parent[row])
        return row

    before = begins.copy()
    assert climb(begins, nesting.parent, stop).tolist() == [nearest(int(row), lambda r: stop[r]) for row in begins]
    assert climb_to_open(begins, nesting.parent, nesting.end_ns, t, stop).tolist() == [
        nearest(int(row), lambda r, at=at: stop[r] and nesting.end_ns[r] > at)
        for row, at in zip(begins, t, strict=True)
    ]
    assert begins.tolist() == before.tolist()


def test_an_optimizer_range_that_outlives_its_step_adopts_nothing_of_the_next():
    """The profiler steps in a hook of the optimizer: step 0, the optimizer, an op in it, step 1, an op in that."""
    start_us = np.array([0, 90_000, 91_000, 100_020, 100_030])
    end_us = np.array([100_000, 100_057, 92_000, 200_000, 150_000])
    assert nest(np.zeros(5, np.int32), 1000 * start_us, 1000 * end_us).parent.tolist() == [-1, -1, 1, -1, 3]


def test_a_span_that_ends_later_by_rounding_is_inside():
    """Spans of 0.9 to 10.1 µs and 1.0 to 10.0 µs, rounded to whole microseconds."""
    start, end, thread = np.array([0, 1000]), np.array([9000, 10_000]), np.zeros(2, np.int32)
    assert nest(thread, start, end).parent.tolist() == [-1, 0]


@given(spans)
def test_own_times_are_those_of_the_innermost_at_each_moment(rows):
    thread, start, end = columns(rows)
    expected = [0] * len(rows)
    for lane in range(3):
        for moment in range(46):
            inside = [i for i, (h, s, n) in enumerate(rows) if h == lane and s <= moment < s + n]
            if inside:
                # Begun last; of those that begin together the shortest, and the last of the file.
                expected[max(inside, key=lambda i: (rows[i][1], -rows[i][2], i))] += UNIT
    assert own_ns(nest(thread, start, end), thread, start, end).tolist() == expected


@given(spans, st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 50)), min_size=1, max_size=8))
def test_innermost_contains_the_moment_and_has_no_child_that_does(rows, moments):
    nesting = nest(*columns(rows))
    thread, t = (np.array(c) for c in zip(*moments, strict=True))
    parents = expected_parents(rows)
    for found, (lane, moment) in zip(nesting.innermost(thread.astype(np.int32), t * UNIT), moments, strict=True):
        inside = [i for i, (h, s, n) in enumerate(rows) if h == lane and s <= moment < s + n]
        if found < 0:
            assert not inside
        else:
            assert found in inside
            assert not any(parents[i] == found for i in inside)


@given(spans)
def test_a_value_is_inherited_from_the_nearest_that_has_one(rows):
    nesting = nest(*columns(rows))
    own = np.array([i % 3 - 1 for i in range(len(rows))], np.int64)
    result = inherit(own, nesting.parent, -1)
    for i, got in enumerate(result):
        at = i
        while at >= 0 and own[at] == -1:
            at = int(nesting.parent[at])
        assert got == (own[at] if at >= 0 else -1)
