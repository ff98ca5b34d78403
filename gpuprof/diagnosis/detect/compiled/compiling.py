"""CPU time spent compiling within the recorded steps, and padding that limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.replay.graph import Graph
from gpuprof.timeline.startup import COMPILING
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Convention, Share, Tokens

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

RECURRING_SHARE: Assumed[Share] = 0.5
"""Smallest share of the recorded steps that must compile: once is warming up."""
LENGTH_MULTIPLE: Convention[Tokens] = 64
"""Lengths padded to a multiple of this have at most 2048 / 64 = 32 different values, each planned once."""


def compiling_ns(case: Analysis) -> float:
    """CPU time per step spent compiling, ns."""
    graph = case.graph
    host = (graph.lane >= 0) & ~graph.waits
    return case.per_step(float(graph.duration_ns[in_most_steps(graph, compiling_nodes(case) & host)].sum()))


def compiling_nodes(case: Analysis) -> Mask:
    return case.nodes_within(case.ops_named(COMPILING.search))


def in_most_steps(graph: Graph, nodes: Mask) -> Mask:
    """The nodes, if enough of the steps have some; otherwise none."""
    steps = len(np.unique(graph.step[nodes]))
    return nodes if graph.steps > 1 and steps >= RECURRING_SHARE * graph.steps else np.zeros(len(graph), bool)
