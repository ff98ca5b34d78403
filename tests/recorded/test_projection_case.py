"""The example of the mixture of experts: its arithmetic, and its page."""

from __future__ import annotations

import pytest
from helpers.example_case import EXAMPLE, example_case


@pytest.fixture(scope="module")
def example():
    return example_case()


def test_published_steps_are_those_of_the_samples_per_hour(example):
    assert example.step_s("moe", "ds1", 0) == pytest.approx(12.5, abs=0.1)
    assert example.step_s("moe", "ds2", 0) == pytest.approx(11.1, abs=0.1), "with the 16 samples that fitted"
    assert example.step_s("moe", "ds2", 1) == pytest.approx(15.8, abs=0.1)


def test_what_was_to_be_met_is_met_and_written_down():
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if "within" not in line and ("met)" in line or "missed" in line)]
    assert len(rows) == 4
    assert not any("**missed**" in row for row in rows)
