"""Parents and innermost spans against a stack walked by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.timeline.nesting import inherit, nest

spans = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 15)), max_size=25)


def columns(rows):
    thread = np.array([r[0] for r in rows], np.int32)
    start = np.array([r[1] for r in rows], np.int64)
    return thread, start, start + np.array([r[2] for r in rows], np.int64)


def expected_parents(rows) -> list[int]:
    """The nearest earlier span of the thread that is still open: earlier by (start, longest first, file order)."""
    order = sorted(range(len(rows)), key=lambda i: (rows[i][0], rows[i][1], -rows[i][2], i))
    parents, stack = [-1] * len(rows), []
    for i in order:
        thread, start, _ = rows[i]
        while stack and (rows[stack[-1]][0] != thread or rows[stack[-1]][1] + rows[stack[-1]][2] <= start):
            stack.pop()
        parents[i] = stack[-1] if stack else -1
        stack.append(i)
    return parents


@given(spans)
def test_parents_are_those_of_a_stack(rows):
    assert nest(*columns(rows)).parent.tolist() == expected_parents(rows)


@given(spans, st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 50)), min_size=1, max_size=8))
def test_innermost_contains_the_moment_and_has_no_child_that_does(rows, moments):
    nesting = nest(*columns(rows))
    thread, t = (np.array(c) for c in zip(*moments, strict=True))
    parents = expected_parents(rows)
    for found, (lane, moment) in zip(nesting.innermost(thread.astype(np.int32), t), moments, strict=True):
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
