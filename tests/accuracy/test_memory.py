"""Predicted peaks of memory, against those that were measured."""

from __future__ import annotations

import statistics

import pytest

from benchmarks import memory as benchmark


@pytest.fixture(scope="module")
def results():
    found = list(benchmark.results())
    if not found:
        pytest.skip("the scenarios' recordings are not there")
    return found


def test_predicted_peaks_are_those_that_were_measured(results):
    """The floor: docs/memory.md may get better, not worse."""
    errors = {f"{r.case.recording}: {r.case.what}": r.error for r in results}
    assert statistics.median(map(abs, errors.values())) < 0.005
    assert max(map(abs, errors.values())) < 0.035, errors
    assert all(r.inside for r in results), [r for r in results if not r.inside]


def test_the_page_is_that_of_the_code(results):
    page = (benchmark.ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    assert page == "\n".join(benchmark.page(results)) + "\n"
