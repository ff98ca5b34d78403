"""Plotly figures of a diagnosis: `gpuprof.charts.roofline(diagnosis)`, for notebooks and for the report.

Every figure takes a Diagnosis and gives a plotly Figure, or None where the recording does not hold what it would show.
All of them are made of scatter and bar traces, which plotly's smallest bundle draws.
"""

from __future__ import annotations

from gpuprof.report.charts.bandwidth import bandwidth
from gpuprof.report.charts.gap_histogram import gap_histogram
from gpuprof.report.charts.memory import memory
from gpuprof.report.charts.memory_owners import memory_owners
from gpuprof.report.charts.phases import phases
from gpuprof.report.charts.rank_steps import rank_steps
from gpuprof.report.charts.ranks import ranks
from gpuprof.report.charts.roofline import roofline
from gpuprof.report.charts.sensitivities import sensitivities
from gpuprof.report.charts.steps import steps
from gpuprof.report.charts.style import CONFIG, LEGEND_PX, for_theme, to_json
from gpuprof.report.charts.telemetry import telemetry
from gpuprof.report.charts.timed_steps import timed_steps
from gpuprof.report.charts.what_if import what_if

__all__ = [
    "CONFIG",
    "LEGEND_PX",
    "bandwidth",
    "for_theme",
    "gap_histogram",
    "memory",
    "memory_owners",
    "phases",
    "rank_steps",
    "ranks",
    "roofline",
    "sensitivities",
    "steps",
    "telemetry",
    "timed_steps",
    "to_json",
    "what_if",
]
