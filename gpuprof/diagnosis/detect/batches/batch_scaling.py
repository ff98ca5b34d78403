"""How a step scales with the number of samples in a batch, and how large a batch fits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import batch as calibrated
from gpuprof.diagnosis.detect.batches.longest_samples import longer_batches
from gpuprof.diagnosis.detect.loops.expert_loops import expert_nodes
from gpuprof.diagnosis.detect.loops.recurrent_loops import fed_nodes
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.projection.changes.batch import another_batch, event_growth, model_phases
from gpuprof.projection.changes.experts import expert_events, forward_tokens, over_all_tokens
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import scaled
from gpuprof.timeline.categories import TENSOR_CATEGORIES
from gpuprof.tracefile.trace import F64
from gpuprof.units import Assumed, Convention, Ratio, Share, Times

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

FACTORS: Convention[tuple[Times, ...]] = (2, 4, 8)
DOUBLING_GAIN: Assumed[Ratio] = 1.2
"""Smallest gain of the last doubling of a batch to advise it: less is not worth the memory."""
USABLE_MEMORY: Assumed[Share] = 0.9
"""Share of a GPU's memory that the allocator can use before it has to search for room."""


def best_factor(case: Analysis, whatever_fits: bool = True) -> tuple[int, float] | None:
    """(the largest factor whose last doubling gains enough and fits in memory, the step with it in ns); None if there
    is none. whatever_fits: False ignores memory."""
    graph = case.graph
    if not (model_phases(graph) & case.nodes_of_gpu(case.category(*TENSOR_CATEGORIES))).any():
        return None  # without matmuls it is no model
    limit = largest_factor(case) if whatever_fits else None
    planned = _new_shapes_ns(case)
    chosen, before, found = 1, case.step_ns + planned, case.step_ns
    for factor in FACTORS:
        longer = longer_batches(case, factor)
        if limit is not None and factor * longer.tokens > limit:
            break
        step = case.step_of(scaled_batch(case, factor, longer=longer.tokens)(graph))
        mean = step + planned * longer.new_shapes
        if (factor // chosen) * before < DOUBLING_GAIN * mean:
            break
        chosen, before, found = factor, mean, step
    return None if chosen == 1 else (chosen, found)


def _new_shapes_ns(case: Analysis) -> float:
    """Time that planning and compiling for new shapes adds to the mean step."""
    excess = case.budget.excess if case.budget else ()
    return float(sum(one.mean_ns or 0 for one in excess if one.cause == "new_shapes"))


def slower_host(case: Analysis, then: Change) -> Change:
    """A change in the worst case: the CPU is slower as well."""
    host = (case.graph.lane >= 0) & ~case.graph.waits

    def change(graph: Graph) -> Graph:
        return then(scaled(graph, host, calibrated.HOST_WORST.value))

    return change


def scaled_batch(case: Analysis, factor: float, level: int = 1, longer: float = 1.0) -> Change:
    """The step with `factor` times the samples in each batch, each with `longer` times the tokens; level: 0 at best,
    1 as expected, 2 at worst."""
    growth = _growth(case, factor, longer) ** calibrated.GROWS.rising[level]
    then = another_batch(case.graph, growth, factor * longer, factor, of_a_round=calibrated.ROUND.rising[level])
    rows = fed_nodes(case)  # a call for each sample: more of them, no larger ones
    if not rows.any():
        return then
    return lambda graph: then(graph).with_durations(np.where(rows, graph.duration_ns * factor, then(graph).duration_ns))


def passes_at_once(case: Analysis, passes: float, level: int) -> F64:
    """Growth of each node of the graph if it does the work of several passes at once; 1 for CPU work. level: 0 at best,
    1 as expected, 2 at worst."""
    growth = _growth(case, passes, 1.0) ** calibrated.GROWS.rising[level]
    return np.append(growth, 1.0)[case.graph.gpu_row]


def _growth(case: Analysis, factor: float, longer: float) -> F64:
    """`event_growth` for a factor; computed once."""
    name = f"growth {factor} {longer}"
    if name not in case.memo:
        case.memo[name] = event_growth(case.timeline, case.roofline, factor * longer, _rows(case), longer)
    return case.memo[name]


def _rows(case: Analysis) -> float | F64 | None:
    """Rows of the matrix multiplication of each GPU event: the tokens of a pass, or for an expert those that it gets on
    average. None if the tokens are unknown."""
    if "rows of matrices" not in case.memo:
        tokens, experts = micro_tokens(case), (case.run.model or {}).get("experts") or {} if case.run else {}
        count, active = experts.get("count"), experts.get("active")
        rows: float | F64 | None = tokens
        if tokens is not None and count and active and active < count:
            of_experts = case.category("grouped_gemm")
            if (nodes := expert_nodes(case)) is not None:
                everyone = over_all_tokens(case.timeline, forward_tokens(case.timeline))
                of_experts = of_experts | (expert_events(case.graph, nodes) & ~everyone)
            rows = np.where(of_experts, tokens * active / count, tokens)
        case.memo["rows of matrices"] = rows
    return case.memo["rows of matrices"]


def micro_tokens(case: Analysis) -> int | None:
    """Tokens of one forward pass: as counted by the run, or else the number of embedded indices; None if unknown, or if
    the model is not trained on tokens."""
    if not case.trains_on_tokens:
        return None
    work = case.run.work if case.run else None
    if work and work.tokens:
        return round(work.tokens / (work.micro_steps or 1))
    shape = indices(case)
    return math.prod(shape) or None if shape else None


def micro_size(case: Analysis) -> int | None:
    """Samples that the loader returns for one forward and backward pass; None if no run reports it. This may differ
    from the rows of the forward tensors: a preference pair has two, a packed batch one."""
    work = case.run.work if case.run else None
    return round(work.samples / (work.micro_steps or 1)) if work and work.samples else None


def indices(case: Analysis) -> tuple[int, ...] | None:
    """The largest shape of indices that a forward pass embeds; None if unknown."""
    return max((shape for shape in index_shapes(case) if shape), key=math.prod, default=None)


def index_shapes(case: Analysis) -> list[tuple[int, ...]]:
    """Shapes of the indices that are embedded in the window, one entry per embedding op."""
    ops = case.trace.ops
    low, high = case.timeline.window
    rows = np.flatnonzero(
        case.ops_named(lambda text: text == "aten::embedding") & (ops.start_ns >= low) & (ops.end_ns <= high)
    )
    found = []
    for dims, count in zip(*np.unique(ops.dims[rows], return_counts=True), strict=True):
        shape = shapes_in(case, int(dims))[1:2]
        found += [shape[0]] * int(count) if shape and shape[0] else []
    return found


def room_note(case: Analysis) -> str:
    """A comment after the fix of a larger batch if it is unknown whether that fits."""
    if largest_factor(case) is not None:
        return ""
    return "  # if memory allows" if len(case.trace.memory) else "  # if memory allows: its use was not recorded"


def largest_factor(case: Analysis) -> float | None:
    """Largest factor on the batch that fits in memory; None if the run did not record its memory."""
    run = case.run
    totals = [info.memory_bytes for info in case.trace.meta.gpus if info.memory_bytes]
    if run is None or not totals or not run.memory.peak_bytes or run.memory.allocated_bytes is None:
        return None
    fixed = min(run.memory.allocated_bytes, run.memory.peak_bytes)
    activations = run.memory.peak_bytes - fixed
    return (USABLE_MEMORY * min(totals) - fixed) / activations if activations else None
