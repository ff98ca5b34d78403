"""Ticks of axes that pages draw themselves: round numbers, in the unit of the largest."""

from __future__ import annotations

import pytest

from gpuprof.report.numbers import round_ticks
from gpuprof.report.words.memory_words import ticks


@pytest.mark.parametrize(
    ("top", "marks"),
    [
        (0.65, [0, 0.2, 0.4, 0.6]),
        (4.5, [0, 2, 4]),
        (10, [0, 5, 10]),
        (650, [0, 200, 400, 600]),
        (0, [0]),
        (float("nan"), [0]),
    ],
)
def test_multiples_of_one_two_and_five(top: float, marks: list[float]):
    assert round_ticks(top, 5) == marks


@pytest.mark.parametrize(
    ("top", "said"),
    [
        (round(4.5 * 2**30), ["0", "1 GiB", "2 GiB", "3 GiB", "4 GiB"]),
        (700 * 2**20, ["0", "200 MiB", "400 MiB", "600 MiB"]),
        (round(1.1 * 2**30), ["0", "0.5 GiB", "1 GiB"]),
        (3, ["0", "1 B", "2 B", "3 B"]),
    ],
)
def test_bytes(top: int, said: list[str]):
    assert [label for label, _ in ticks(top)] == said
