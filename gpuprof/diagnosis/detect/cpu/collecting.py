"""Python's garbage collection in every step: its measured time, and its place in the recorded steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.idle.gaps import COLLECTING
from gpuprof.diagnosis.mean_step.recurring import full_collections
from gpuprof.tracefile.trace import ANNOTATION, F64, I64
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_COLLECTING_SHARE: Assumed[Share] = 0.02
"""Smallest share of the mean step that garbage collection must take; young generations take far less."""
PART_OF_COLLECTION: Assumed[Share] = 0.5
"""A stretch of Python shorter than this share of a collection contains something else."""


@dataclass(frozen=True, slots=True, eq=False)
class Collecting:
    """Garbage collections that occur in every step."""

    nodes: I64
    """The stretch of Python that contains them, one node per recorded step."""
    usual_ns: float
    """Their time in the usual timed step, ns."""


def collecting(case: Analysis) -> Collecting | None:
    """Collections that take a noticeable part of the usual step and can be located in every recorded step."""
    usual_ns = usual_collection_ns(case)
    if usual_ns <= 0 or usual_ns < LEAST_COLLECTING_SHARE * case.mean_ns:
        return None
    at = _stretches(case, usual_ns)
    return Collecting(at, usual_ns) if len(at) else None


def usual_collection_ns(case: Analysis) -> float:
    """Median time of garbage collection in steps timed without a profiler, ns; 0 if it was not measured."""
    if case.folder is None or case.budget is None or case.budget.source != "free":
        return 0.0
    steps = case.folder.steps
    timed = (steps.rank == case.folder.rank) & ~steps.profiled & (steps.garbage_collection_ns >= 0)
    return float(np.quantile(steps.garbage_collection_ns[timed], 0.5, method="lower")) if timed.any() else 0.0


def left_without_batches(case: Analysis) -> dict[str, float]:
    """Cause of excess → share of it that is left if the training process no longer makes its batches itself.

    Python collects when enough objects have been made: collections come while batches are made in the share in which
    those objects are theirs (rows of a table, tokens, graphs)."""
    found = None if case.folder is None else full_collections(case.folder)
    return {} if found is None else {COLLECTING: 1 - found.in_waits}


def _stretches(case: Analysis, usual_ns: float) -> I64:
    """The longest stretch of Python outside all ops in each recorded step; empty unless every step has one that is long
    enough."""
    graph = case.graph
    outside = np.append(case.trace.ops.kind == ANNOTATION, True)[graph.scope]
    python = np.flatnonzero(outside & ~graph.on_gpu & ~graph.waits & (graph.lane >= 0))
    longest: F64 = np.zeros(graph.steps)
    np.maximum.at(longest, graph.step[python], graph.duration_ns[python])
    if not graph.steps or longest.min() < PART_OF_COLLECTION * usual_ns:
        return np.empty(0, np.int64)
    return np.array([
        mine[int(np.argmax(graph.duration_ns[mine]))]
        for mine in (python[graph.step[python] == step] for step in range(graph.steps))
    ])  # fmt: skip
