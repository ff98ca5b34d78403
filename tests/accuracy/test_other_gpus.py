"""Projections from one GPU to another, against what was measured on both."""

from __future__ import annotations

import statistics

import pytest
from helpers.paths import ROOT

from benchmarks import other_gpus


@pytest.fixture(scope="module")
def steps():
    return list(other_gpus.steps())


def test_steps_on_the_other_gpu_are_as_projected(steps):
    assert len(steps) >= 11
    assert statistics.median(abs(one.error) for one in steps) <= 0.03
    assert sum(one.meets for one in steps) >= 0.8 * len(steps), "80 % intervals"


def test_what_the_gpu_binds_is_projected_within_five_percent(steps):
    off = {one.name: one.error for one in steps if one.bound in ("compute", "memory")}
    assert len(off) >= 7
    assert all(abs(error) <= 0.05 for error in off.values()), off


def test_kernels_follow_the_bandwidth_as_far_as_they_use_it():
    for band in other_gpus.kernels():
        assert band.projected == pytest.approx(band.measured, rel=0.11), band
        assert band.off <= 0.17, band


def test_kernels_of_a_librarys_own_functions_are_as_much_slower_as_was_measured():
    """Their traffic is estimated from tensors that need not be theirs: taken at face value, it made them 1.09 and 1.14
    times as long, where they took 1.32 and 1.37."""
    found = [band for band in other_gpus.kernels() if band.share == other_gpus.GUESSED]
    assert [band.training for band in found] == list(other_gpus.TRAININGS)
    for band in found:
        assert band.ms > 50
        assert band.projected == pytest.approx(band.measured, rel=0.05), band
        assert band.off <= 0.10, band


def test_the_page_is_what_the_command_writes(steps):
    written = (ROOT / "docs" / "other_gpus.md").read_text(encoding="utf-8").splitlines()
    result = "\n".join(other_gpus.page(steps, list(other_gpus.kernels()))).splitlines()
    assert [line for line in written if line.startswith("|")] == [line for line in result if line.startswith("|")]
