"""Figures of a diagnosis, and their contents. A test module that takes this as a plugin (`pytest_plugins`) has the
fixtures `timed_run`, `bare_trace` and `real`: names of their own, since fixtures of plugins are those of all modules.

PYTEST_DONT_REWRITE: a module imports it before it is a plugin.
"""

from __future__ import annotations

import json

import pytest
from plotly.graph_objects import Figure

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report import charts
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT

FIGURES = (
    "bandwidth",
    "gap_histogram",
    "memory",
    "memory_owners",
    "phases",
    "critical_path",
    "rank_steps",
    "ranks",
    "roofline",
    "sensitivities",
    "steps",
    "telemetry",
    "timed_steps",
    "what_if",
)
RUN = ROOT / "tests" / "data" / "runs" / "tiny_lora"
THROTTLED_RUN = ROOT / "tests" / "data" / "runs" / "dense8b_lora"
BARE = ROOT / "tests" / "data" / "pairs" / "moe_small.json.gz"
"""A trace alone."""


@pytest.fixture(scope="module")
def timed_run() -> Diagnosis:
    """The diagnosis of a run with timed steps."""
    return diagnosed(RUN)


@pytest.fixture(scope="module")
def bare_trace() -> Diagnosis:
    """The diagnosis of a trace alone."""
    return diagnosed(BARE)


@pytest.fixture(scope="module", params=["timed_run", "bare_trace"])
def real(request: pytest.FixtureRequest) -> Diagnosis:
    """Each of the two diagnoses."""
    return request.getfixturevalue(request.param)


def drawn(diagnosis: Diagnosis) -> dict[str, Figure]:
    """Every figure that there is, by name."""
    found = {name: getattr(charts, name)(diagnosis) for name in FIGURES}
    return {name: figure for name, figure in found.items() if figure is not None}


def content(figure) -> dict:
    return json.loads(charts.to_json(figure, titled=True))
