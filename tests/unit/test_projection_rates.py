"""The source of the rate that a GPU is assumed to sustain."""

from __future__ import annotations

import dataclasses

import pytest

from gpuprof.costs.hardware import Gpu, find
from gpuprof.projection.projection import DOCUMENT as PROJECTION
from gpuprof.projection.sustained_rates import reach


@pytest.fixture(autouse=True)
def _no_saved_measurements(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def l4(**changed: object) -> Gpu:
    gpu = find("NVIDIA L4")
    assert gpu is not None
    return dataclasses.replace(gpu, **changed)  # type: ignore[arg-type]


def test_without_a_power_limit_the_rate_is_a_share_of_what_is_stated_and_says_so():
    known, unknown = reach(l4()), reach(l4(tdp_w=None))
    assert known.half_source == "power"
    assert unknown.half_source == "stated"
    assert unknown.half_flops == pytest.approx(0.8 * (l4().half_flops or 0))


def test_every_source_of_a_rate_is_in_the_schema():
    schema = PROJECTION.schema()
    sources = schema["$defs"]["rates"]["properties"]["half_source"]["enum"]
    assert {reach(l4(tdp_w=None)).half_source, reach(l4()).half_source} <= set(sources)
