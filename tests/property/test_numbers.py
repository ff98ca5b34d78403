"""Numbers in a trace's text become nanoseconds exactly."""

from __future__ import annotations

from decimal import Decimal

from helpers import oracle
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.tracefile.kineto.microseconds import nanoseconds


@given(st.decimals(min_value=-(10**15), max_value=10**15, places=3, allow_nan=False))
def test_three_decimals_are_exact(value):
    assert nanoseconds(f"{value:f}".encode()) == (int(value * 1000), False)


@given(st.integers(-(10**15), 10**15), st.text("0123456789", min_size=1, max_size=12))
def test_more_decimals_round_to_the_nearest(whole, fraction):
    text = f"{whole}.{fraction}"
    value, rounded = nanoseconds(text.encode()) or (None, None)
    exact = Decimal(text) * 1000
    assert value == oracle.ns(text)
    assert rounded == (exact != value)
