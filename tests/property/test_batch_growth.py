"""Shapes as a trace has them, whatever their text holds."""

from __future__ import annotations

import json

from helpers.budgets import budget
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.projection.changes.weights import shapes_of

anything = st.recursive(
    st.none() | st.integers(-2, 9) | st.text(max_size=3) | st.booleans(), lambda one: st.lists(one, max_size=3)
)
nearly_shapes = st.lists(st.lists(st.integers(-2, 9) | st.booleans(), max_size=3), max_size=3)


@given(anything | nearly_shapes)
@budget(100)
def test_dims_may_hold_anything(value):
    found = shapes_of(json.dumps(value))
    assert found is None or all(type(side) is int and side >= 0 for shape in found for side in shape)
    assert shapes_of(json.dumps(value)[:-1] + "[") is None
