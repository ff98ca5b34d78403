"""How much of the steps' variation a change of CPU work leaves."""

from __future__ import annotations

import numpy as np

from gpuprof.replay.graph import Graph
from gpuprof.tracefile.trace import F64
from gpuprof.units import Assumed, Share

LEAST_VARIES: Assumed[Share] = 0.1
"""Smallest share of the recorded steps' CPU work that exceeds the middle step's for them to show what varies."""


def variation_left(graph: Graph, changed: Graph) -> float:
    """The share of the steps' variation that remains with a change: of what the CPU does in some recorded steps beyond
    the middle one, the share that the change does not remove. 1 where the recorded steps hardly vary.

    Replays of the usual step cannot show it: work that takes far longer now and then, such as threads that wait for one
    another on a busy machine, is in the mean and not in the middle step.
    """
    host = (graph.lane >= 0) & ~graph.waits
    took, then = (_each_step(one, host, graph.steps) for one in (graph, changed))
    beyond = _beyond(took)
    if beyond < LEAST_VARIES * float(took.sum()):
        return 1.0
    return min(max(1 - _beyond(took - then) / beyond, 0.0), 1.0)


def _each_step(graph: Graph, nodes: np.ndarray, steps: int) -> F64:
    return np.bincount(graph.step[nodes], weights=graph.duration_ns[nodes], minlength=steps).astype(np.float64)


def _beyond(each: F64) -> float:
    return float((each - np.median(each)).clip(0).sum()) if len(each) else 0.0
