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
"""Host factors for which every projection is shown. Hosts of H200s differed by 1.3 among themselves."""
FACTOR_LIMITS: Assumed[tuple[Ratio, Ratio]] = (0.05, 20.0)
"""No two hosts that train differ by more."""


def another_host(graph: Graph, factor: float) -> Graph:
    """The graph on a host that takes `factor` times as long for everything, handing over between threads included."""
    edges = graph.edges
    lag = np.where(edges.kind == HANDOVER, edges.lag_ns * factor, edges.lag_ns)
    return replace(scale(graph, host=factor, input=factor), edges=replace(edges, lag_ns=lag))


def measured_factor(here: Measurement, there: Measurement) -> float:
    """Host time there over here, from what `gpuprof gpus --measure` found on both: the geometric mean of a small op's
    host time and of a turn of a Python loop, which is what a step's host work is made of."""
    return math.sqrt(there.launch_ns / here.launch_ns * there.host_loop_ns / here.host_loop_ns)
