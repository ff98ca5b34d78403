"""The model of measured peaks, for any training whose memory follows its assumptions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.errors import GpuprofError
from gpuprof.trial.fit import Model, Point, model_of, table

MIB = 2**20


def peak(batch: int, length: int, fixed: float, token: float, square: float) -> int:
    return round(fixed + (token + square * length) * batch * length)


@given(st.integers(1, 64), st.integers(16, 4096), st.floats(1, 1e5), st.floats(1e3, 1e7), st.floats(0, 1e3))
def test_it_goes_through_what_was_measured_and_finds_the_rest(batch, length, fixed, token, square):
    numbers = (fixed * MIB, token, square)
    points = [Point(b, n, peak(b, n, *numbers), None) for b, n in
              ((batch, length), (2 * batch, length), (batch, 2 * length))]  # fmt: skip
    model = model_of(points)
    for other, tokens in ((3 * batch, length), (batch, 3 * length), (5 * batch, 2 * length)):
        low, likely, high = model.peak(other, tokens)
        assert likely == pytest.approx(peak(other, tokens, *numbers), rel=1e-3)
        assert low <= likely <= high


@given(st.integers(1, 64), st.integers(16, 4096), st.floats(1e3, 1e7), st.floats(10, 1e6))
def test_the_largest_batch_fits_and_one_more_does_not(batch, length, token, room_mib):
    model = Model(MIB, token, 0.0, length, True, 0.03)
    room = room_mib * MIB
    surely, likely, most = model.largest_batch(room, length)
    assert surely <= likely <= most
    if likely:
        assert model.peak(likely, length)[1] <= room * 1.0001
    assert model.peak(likely + 1, length)[1] >= room * 0.9999


def test_an_unmeasured_length_is_less_sure_than_a_measured_one():
    points = [Point(4, 128, 100 * MIB, None), Point(8, 128, 180 * MIB, None)]
    known = model_of([*points, Point(4, 256, 180 * MIB, None)])
    unknown = model_of(points)
    assert unknown.peak(4, 512)[2] > known.peak(4, 512)[2] and unknown.peak(4, 128) == pytest.approx(known.peak(4, 128))


def test_a_peak_that_does_not_grow_is_no_model():
    with pytest.raises(GpuprofError, match="did not grow"):
        model_of([Point(4, 128, 100 * MIB, None), Point(8, 128, 100 * MIB, None)])


def test_the_table_has_what_was_asked_for():
    model = Model(MIB, 1e4, 0.0, 128, True, 0.03)
    cells = table(model, [Point(4, 128, MIB, None)], (4, 8), (128,))
    assert [(cell.batch, cell.length) for cell in cells] == [(4, 128), (8, 128)]
    assert {cell.batch for cell in table(model, [Point(1, 1, MIB, None)], (), ())} == {1, 2, 4, 8}
