"""The rows of ids are the same as a search through every row finds."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.tracefile.rows_by_id import FIRST_LONG_ID, RowsById, same_again


@given(st.lists(st.integers(-1, 9), max_size=40), st.sets(st.integers(0, 9)))
@pytest.mark.parametrize("count", [10, FIRST_LONG_ID, FIRST_LONG_ID + 1])
def test_masks(count: int, ids: list[int], wanted: set[int]):
    column = np.array(ids, np.int32)
    rows = RowsById(column, count)
    assert rows.present == sorted(set(ids) - {-1})
    assert rows.mask(wanted).tolist() == [one in wanted for one in ids]


def test_the_largest_short_id():
    assert RowsById(np.array([FIRST_LONG_ID - 1, 0], np.int32), FIRST_LONG_ID).mask([FIRST_LONG_ID - 1]).tolist() == [
        True,
        False,
    ]


def test_only_tests_that_give_the_same_again_are_equal():
    def of(known: set[str]):
        return [known.__contains__, lambda text: text in known, lambda text, known=known: text in known]

    assert not any(map(same_again, of({"a"}))), "what is known may change"
    pattern, names = re.compile("a"), frozenset("a")
    for test in (pattern.search, names.__contains__, lambda text: text == "a"):
        assert same_again(test) is not None
    assert same_again(pattern.search) == same_again(pattern.search) != same_again(pattern.match)
    tests = [lambda text: text == "a" for _ in range(2)]
    assert same_again(tests[0]) == same_again(tests[1])
