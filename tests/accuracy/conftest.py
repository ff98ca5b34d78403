"""Tests of accuracy share what their benchmarks need most often: diagnoses of recordings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.diagnosed import each_diagnosed_once


@pytest.fixture(scope="module", autouse=True)
def _benchmarks_diagnose_each_recording_once() -> Iterator[None]:
    with each_diagnosed_once():
        yield
