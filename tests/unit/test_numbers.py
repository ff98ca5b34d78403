"""Numbers of a trace in odd notations."""

from __future__ import annotations

import pytest

from gpuprof.tracefile.kineto.microseconds import nanoseconds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5e3", 1_500_000),
        ('"12.25"', 12_250),
        ("9223372036854775.806", 9223372036854775806),
        ("9223372036854776", None),
        ("1e400", None),
        ("NaN", None),
        ("null", None),
        ("", None),
    ],
)
def test_odd_numbers(text, value):
    result = nanoseconds(text.encode())
    assert (result and result[0]) == value
