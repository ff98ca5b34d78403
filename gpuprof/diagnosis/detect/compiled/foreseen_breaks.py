"""Where the graph of a model that is not compiled yet would break, and its repeated blocks, which can be compiled
separately."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import breaks as calibrated
from gpuprof.diagnosis.detect.compiled.compiled_passes import Passes, waits_in_passes
from gpuprof.diagnosis.detect.compiled.opaque_functions import opaque_functions
from gpuprof.diagnosis.recorded.frozen_passes import TRAINED
from gpuprof.replay.graph import Graph
from gpuprof.tracefile.trace import ANNOTATION
from gpuprof.units import Assumed, Count

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

BLOCK = re.compile(r"nn\.Module: (\w+)_(\d+)$")
FEWEST_BLOCKS: Assumed[Count] = 4
REDUCES = re.compile(r"^ncclDevKernel_AllReduce|^ncclKernel_AllReduce|AllReduce", re.IGNORECASE)
GATHERS = re.compile(r"AllGather", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModelBlocks:
    """The repeated blocks of a model."""

    name: str
    count: int


def blocks_of(case: Analysis) -> ModelBlocks | None:
    """The class with most numbered modules in the forward pass; None if the recording shows none."""
    trace, ops = case.trace, case.trace.ops
    rows = np.flatnonzero(case.ops_named(BLOCK.search) & (ops.kind == ANNOTATION))
    numbers: dict[str, set[int]] = {}
    for name in np.unique(ops.name[rows]).tolist():
        found = BLOCK.search(trace.strings[name])
        if found:
            numbers.setdefault(found[1], set()).add(int(found[2]))
    best = max(numbers, key=lambda name: len(numbers[name]), default=None)
    return ModelBlocks(best, len(numbers[best])) if best is not None and len(numbers[best]) >= FEWEST_BLOCKS else None


ONE = {
    "values that are read": "value that is read",
    "calls of custom autograd functions": "call of a custom autograd function",
    "buckets of DDP": "bucket of DDP",
    "units of FSDP": "unit of FSDP",
}
"""Singular of the names in `foreseen`."""


def foreseen(case: Analysis) -> tuple[tuple[str, float], ...]:
    """(what breaks the graph, times per step) for the passes: values that are read, extension functions, buckets of
    DDP, units of FSDP. Other code that Dynamo cannot trace only shows when you try it."""
    found = []
    if waits := waits_in_passes(case):
        found.append(("values that are read", case.per_step(float(waits))))
    if functions := len(case.outermost(opaque_functions(case))):
        found.append(("calls of custom autograd functions", case.per_step(float(functions))))
    wrapper = ((case.run.model if case.run else None) or {}).get("wrapper")
    graph, names = case.graph, case.trace.gpu.name
    for kind, pattern, passes, what in (
        ("DistributedDataParallel", REDUCES, 1, "buckets of DDP"),
        ("FullyShardedDataParallel", GATHERS, 2, "units of FSDP"),
    ):
        if wrapper == kind:
            nodes = case.nodes_of_gpu(case.trace.rows_named(names, pattern.search)) & graph.on_gpu
            # Parameters are gathered for the forward pass and again for the backward pass.
            if count := float(nodes.sum()) / passes:
                found.append((what, case.per_step(count) / case.devices))
    return tuple(found)


def further_calls(case: Analysis) -> float:
    """Calls of the trained model in a training step beyond one for each backward pass, as those of a policy that acts
    step by step: each enters the compiled code once more. 0 where the recording does not mark calls."""
    if case.workload.is_inference:
        return 0.0
    ops, (low, high) = case.trace.ops, case.timeline.window
    called = case.ops_named(TRAINED.__eq__) & (ops.kind == ANNOTATION) & (ops.start_ns >= low) & (ops.end_ns <= high)
    return max(case.per_step(float(called.sum()) - len(case.timeline.host.backward)), 0.0)


def with_further_calls(change: Change, found: Passes, calls: float, way: int) -> Change:
    """A change that compiles the passes, plus what entering them takes in each of the further calls of the model."""
    return with_calls(change, found, calls / 2, way)  # forward only


def in_words(breaks: tuple[tuple[str, float], ...]) -> str:
    """`foreseen graph breaks: 3 values that are read, 4 buckets of DDP`; empty without any."""
    if not breaks:
        return ""
    counted = ((f"{count:,.0f}", what) for what, count in breaks)
    return "foreseen graph breaks: " + ", ".join(
        f"{n} {ONE.get(what, what) if n == '1' else what}" for n, what in counted
    )


def with_calls(change: Change, found: Passes, calls: float, way: int) -> Change:
    """A change that compiles the passes, plus further graph calls in each of them: `calls` per step, forward and
    backward; `way` 0: at best, 1: as expected, 2: at worst."""
    if not calls:
        return change
    first = found.first

    def then(graph: Graph) -> Graph:
        graph = change(graph)
        steps = max(graph.steps, 1)
        duration = graph.duration_ns.copy()
        duration[first] += 2 * calls * steps / max(len(first), 1) * calibrated.CALL_NS.rising[way]
        return graph.with_durations(duration)

    return then
