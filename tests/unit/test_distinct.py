"""`distinct`, `numbered` and `rows_by_value` give the same as `np.unique` and comparisons, but faster."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.tracefile.distinct import WIDEST_TABLE, distinct, numbered, rows_by_value


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.sampled_from(["int64", "int32", "uint8", "bool"]))
def test_it_is_what_numpy_says(values: list[int], dtype: str):
    column = np.array(values, np.int64).astype(dtype)
    assert distinct(column).dtype == np.unique(column).dtype
    assert distinct(column).tolist() == np.unique(column).tolist()


@pytest.mark.parametrize(
    "column", [[3, 1, 3], [[2, 1], [1, 2]], ["b", "a", "b"], [float("nan"), 1.0, float("nan")], []]
)
def test_other_columns_and_lists_too(column: list):
    np.testing.assert_array_equal(distinct(column), np.unique(np.array(column)))


@given(
    st.lists(st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-5, 5)), st.sampled_from(["int64", "int32", "uint8"])
)
def test_numbers_are_those_of_numpy(values: list[int], dtype: str):
    column = np.array(values, np.int64).astype(dtype)
    assert numbered(column).tolist() == np.unique(column, return_inverse=True)[1].tolist()


@pytest.mark.parametrize("width", [WIDEST_TABLE - 1, WIDEST_TABLE, WIDEST_TABLE + 1])
def test_numbers_of_wide_and_narrow_columns(width: int):
    assert numbered(np.array([7 + width, 7, 9, 7])).tolist() == [2, 0, 1, 0]


@given(st.lists(st.integers(-3, 3)), st.sampled_from(["int64", "int32", "int8"]))
def test_rows_of_each_value_are_those_that_equal_it(values: list[int], dtype: str):
    column = np.array(values, np.int64).astype(dtype)
    expected = {one: np.flatnonzero(column == one).tolist() for one in np.unique(column).tolist()}
    found = rows_by_value(column)
    assert list(found) == list(expected)
    assert {one: rows.tolist() for one, rows in found.items()} == expected
