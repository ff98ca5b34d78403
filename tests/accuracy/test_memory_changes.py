"""Predicted peaks of memory after a change of the training, against those that were measured."""

from __future__ import annotations

import statistics

import pytest

from benchmarks import memory_changes as benchmark


@pytest.fixture(scope="module")
def results():
    found = list(benchmark.results())
    if not found:
        pytest.skip("the scenarios' recordings are not there")
    return found


def test_predicted_peaks_are_those_that_were_measured(results):
    """The floor: docs/memory_changes.md may get better, not worse."""
    errors = {f"{r.case.recording}: {r.case.what}": abs(r.error) for r in results if r.error is not None}
    assert len(errors) >= 12
    assert len({r.case.recording for r in results if r.error is not None}) >= 5
    assert statistics.median(errors.values()) < 0.03
    assert max(errors.values()) < 0.1, errors


def test_what_is_not_known_is_withheld(results):
    assert [r.case.recording for r in results if r.peaks is None] == ["qwen3_32b_unsloth"]


def test_the_page_is_that_of_the_code(results):
    page = (benchmark.ROOT / "docs" / "memory_changes.md").read_text(encoding="utf-8")
    assert page == "\n".join(benchmark.page(results)) + "\n"
