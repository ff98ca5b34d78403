"""Another CPU: all its work is scaled by a factor."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gpuprof.costs.measured_rates import Measurement
from gpuprof.replay.graph import HANDOVER, Graph
from gpuprof.replay.transform import scale
from gpuprof.units import Assumed, Convention, Ratio

SHOWN_FACTORS: Convention[tuple[Ratio, Ratio, Ratio]] = (0.5, 1.0, 2.0)
"""CPU (host) factors for which every projection is shown. The CPUs of H200 machines differed among themselves by
1.3."""
FACTOR_LIMITS: Assumed[tuple[Ratio, Ratio]] = (0.05, 20.0)
"""No two hosts that train differ by more."""


def another_host(graph: Graph, factor: float) -> Graph:
    """The graph on a CPU that takes `factor` times as long for everything, including hand-overs between threads."""
    edges = graph.edges
    lag = np.where(edges.kind == HANDOVER, edges.lag_ns * factor, edges.lag_ns)
    return replace(scale(graph, host=factor, input=factor), edges=replace(edges, lag_ns=lag))


def measured_factor(here: Measurement, there: Measurement) -> float:
    """CPU time there over CPU time here, from `gpuprof gpus --measure` on both: the geometric mean of the ratios for a
    small op and for an iteration of a Python loop, the two things that a step's CPU work consists of."""
    return math.sqrt(there.launch_ns / here.launch_ns * there.host_loop_ns / here.host_loop_ns)
