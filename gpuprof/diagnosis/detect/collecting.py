"""Python's garbage collection in every step: a step that calls gc.collect() itself.

What some steps do more than others is in the budget; what all of them do is in the usual step, and a trace shows it as
a stretch without any event. The recorder times each collection, so how long that stretch is for it is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import slow as calibrated
from gpuprof.replay.cpu_compute import without_launches
from gpuprof.tracefile.trace import F64, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

STRETCH_NS = calibrated.STRETCH_NS.value
MOST_STEPS = 0.8
"""Share of the timed steps that collect, from which on it is part of every step."""


@dataclass(frozen=True, slots=True)
class Collecting:
    """Collections of a usual step."""

    ns: float
    """CPU time in a step, the median of the timed steps."""
    nodes: Mask
    """Stretches of the training thread, in no op that launches, that are long enough for it."""
    left: F64
    """Per node the share that is left without it."""


def collecting(case: Analysis) -> Collecting | None:
    """What every step collects; None where most do not, or no stretch of the graph is long enough."""
    folder, graph = case.folder, case.graph
    if folder is None or not len(graph):
        return None
    steps = folder.steps
    rows = steps.rows("baseline_free", folder.rank)
    took = steps.garbage_collection_ns[rows].clip(0)
    if not len(rows) or np.mean(took > 0) < MOST_STEPS:
        return None
    ns = float(np.median(took))
    nodes = without_launches(graph) & (graph.lane == case.timeline.main_thread) & (graph.duration_ns >= STRETCH_NS)
    whole = np.bincount(graph.step[nodes], weights=graph.duration_ns[nodes], minlength=graph.steps)
    if ns < STRETCH_NS or not nodes.any():
        return None
    share = 1 - np.minimum(ns / np.maximum(whole, 1.0), 1.0)
    return Collecting(ns, nodes, np.where(nodes, share[np.minimum(graph.step, graph.steps - 1)], 1.0))
