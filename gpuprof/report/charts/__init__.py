"""Plotly figures of a diagnosis: `gpuprof.charts.roofline(diagnosis)`, for notebooks and for the report.

Every function takes a Diagnosis and returns a plotly Figure, or None if the recording lacks the data. All use only
scatter and bar traces, so plotly's smallest bundle can draw them.
"""

from __future__ import annotations

from gpuprof.report.charts.bandwidth import bandwidth
from gpuprof.report.charts.critical_path import critical_path
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
    "critical_path",
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
