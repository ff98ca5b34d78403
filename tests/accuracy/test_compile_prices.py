"""Prices of compiling, graph breaks, CUDA graphs, FP8 and fused kernels next to what was measured."""

from __future__ import annotations

from functools import cache

import pytest
from helpers.paths import ROOT

from benchmarks.compile_prices import FINDINGS, Price, prices, summary
from benchmarks.recall import programs

SIGN, HELD = 0.9, 0.75
"""Smallest share of right signs, and of predicted 80 % intervals that overlap the measured ones."""
FEWEST = 8


@cache
def found() -> tuple[Price, ...]:
    """Prices for all programs whose recordings are in the repository."""
    nothing = ROOT / "no" / "shared" / "folder"
    return tuple(price for program in programs(nothing) for price in prices(program))


def test_signs_are_right_and_intervals_hold():
    shares = summary(found())
    assert shares["sign right"].of >= FEWEST
    assert shares["sign right"].hits >= SIGN * shares["sign right"].of, [
        one for one in found() if not one.sign_is_right
    ]
    assert shares["interval holds"].hits >= HELD * shares["interval holds"].of


def price(measured: tuple[float, float, float] | None, said: tuple[float, float, float] | None, where: str) -> Price:
    return Price("program", "test", "change", FINDINGS[0], measured, said, where)


@pytest.mark.parametrize(
    ("one", "sign", "held"),
    [
        (price((1.4, 1.5, 1.6), (1.2, 1.8, 2.5), "fixes"), True, True),
        (price((1.4, 1.5, 1.6), (0.5, 0.8, 0.9), "considered"), False, False),
        (price((0.6, 0.7, 0.8), (1.1, 1.3, 1.5), "fixes"), False, False),
        (price((0.6, 0.7, 0.8), (0.9, 1.0, 1.1), "considered"), True, False),
        (price((1.0, 1.03, 1.05), (0.9, 1.0, 1.1), "considered"), True, True),
        (price(None, (1.1, 1.3, 1.5), "fixes"), False, None),
        (price(None, (1.1, 1.3, 1.5), "considered"), True, None),
        (price((1.4, 1.5, 1.6), None, "absent"), False, None),
    ],
)  # fmt: skip
def test_signs_and_intervals_by_hand(one: Price, sign: bool, held: bool | None):
    assert (one.sign_is_right, one.held) == (sign, held)


def test_a_price_near_some_turn():
    """Turns of a busy machine took off 0.29 to 0.41 of the step, 0.36 in the middle."""
    turns = (1.4, 1.55, 1.7)
    for gain, near, near_a_turn in ((1.6, True, True), (1.8, False, True), (2.2, False, False), (1.32, False, True)):
        one = price(turns, (1.0, gain, 3.0), "fixes")
        assert (one.near, one.near_a_turn) == (near, near_a_turn), gain
    assert price((0.9, 1.0, 1.1), (1.0, 1.5, 3.0), "fixes").near_a_turn is None


@pytest.mark.parametrize(
    "said, was, near",
    [(1.9, 2.0, True), (1.5, 2.0, False), (None, 2.0, False), (1.3, 1.01, None), (0.8, 0.7, None)],
)
def test_a_price_is_what_a_change_takes_off_the_step(said: float | None, was: float, near: bool | None):
    """Of a step that halves 0.5 is measured; 1 - 1 / 1.9 are 0.47 of it, 1 - 1 / 1.5 only 0.33."""
    predicted = None if said is None else (said, said, said)
    assert Price("program", "test", "change", FINDINGS[0], (was, was, was), predicted, "fixes").near is near
