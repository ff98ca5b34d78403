"""Figures of a diagnosis, and what they hold."""

from __future__ import annotations

import json

from plotly.graph_objects import Figure

from gpuprof.diagnosis.diagnosis import Diagnosis
from gpuprof.report import charts
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


def drawn(diagnosis: Diagnosis) -> dict[str, Figure]:
    """Every figure that there is, by name."""
    found = {name: getattr(charts, name)(diagnosis) for name in FIGURES}
    return {name: figure for name, figure in found.items() if figure is not None}


def content(figure) -> dict:
    return json.loads(charts.to_json(figure, titled=True))
