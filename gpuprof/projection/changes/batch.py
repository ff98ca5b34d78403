"""Another batch: the time of each part of a step with more or fewer tokens."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import batch as calibrated
from gpuprof.costs.dtypes import DTYPES, UNKNOWN
from gpuprof.costs.split import roof_ns
from gpuprof.costs.work import recorded_sms
from gpuprof.projection.changes.attention_scores import on_attention_scores
from gpuprof.projection.changes.per_sample_attention import more_calls, rounds_of
from gpuprof.projection.changes.sample_preparation import preparing
from gpuprof.projection.changes.weights import on_weights
from gpuprof.replay.graph import COMMUNICATION, INPUT, TRANSFER, Graph
from gpuprof.replay.split_collectives import waiting
from gpuprof.timeline.categories import CATEGORIES, TENSOR_CATEGORIES
from gpuprof.timeline.collectives.collectives import KINDS, find_collectives
from gpuprof.timeline.nesting import inside
from gpuprof.timeline.phases import BACKWARD, DATA, FORWARD, OPTIMIZER, RECOMPUTE
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE, F64, I64, Mask
from gpuprof.units import Assumed, Bytes, Share

if TYPE_CHECKING:
    from gpuprof.costs.roofline import Roofline
    from gpuprof.timeline.timeline import Timeline

PERSISTENT_BLOCKS: Assumed[Share] = 0.9
"""Blocks per SM. A kernel with about one block per SM loops over its tiles, and has fewer of them for fewer tokens."""
LARGEST_SCALAR_BYTES: Assumed[Bytes] = 1024
"""A copy to the host of up to this many bytes is of single values: the loss, a norm, a flag."""
EXCHANGE = re.compile(r"all_?to_?all|all2all|SendRecv|a2a|dispatch_combine|deep_?ep", re.IGNORECASE)
_OF_WEIGHTS = [KINDS.index(name) for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")]
ACCUMULATE = f"{AUTOGRAD_ENGINE}torch::autograd::AccumulateGrad"
_SIZES = np.array([4.0 if name in ("fp32", "tf32") else 2.0 for name in DTYPES] + [2.0])
"""Bytes per weight by the format of the matmul; those of half precision if it is not known."""


def model_phases(graph: Graph) -> Mask:
    """Nodes of forward, backward and recomputation; read-only."""
    if "model_phases" not in graph.shared:
        graph.shared["model_phases"] = found = np.isin(graph.phase, (FORWARD, BACKWARD, RECOMPUTE))
        found.flags.writeable = False
    return graph.shared["model_phases"]


def another_batch(
    graph: Graph, growth: F64, factor: float, samples: float | None = None,
    of_a_round: float = calibrated.ROUND.rising[1], rounds: I64 | None = None,
) -> Callable[[Graph], Graph]:  # fmt: skip
    """The change that gives a step `factor` times the tokens, in `samples` times the samples (None: in `factor` times).

    growth: for each GPU event of the trace, how many times as long it takes. Copies of batches and of results,
    preparing samples, and collectives that exchange tokens grow with the tokens. Other CPU work stays the same, except
    for samples that go through attention one after another: each more takes `of_a_round` of the CPU time of a recorded
    one.
    rounds: `rounds_of` the graph, if already known.
    """
    per_event = np.append(growth, 1.0)[graph.gpu_row]
    by_node = np.where(graph.on_gpu & (model_phases(graph) | (graph.phase == DATA)), per_event, 1.0)
    more = (factor if samples is None else samples) - 1
    if more:
        rounds = rounds_of(graph) if rounds is None else rounds
        many = rounds > 0
        on_gpu = graph.on_gpu[many]
        by_node[many] = more_calls(rounds[many], more, np.where(on_gpu, by_node[many], 1.0), on_gpu, of_a_round)
    by_node[(graph.resource == INPUT) | _copies_of_batches(graph) | exchanges_tokens(graph)] = factor
    by_node[preparing(graph)] = more + 1

    def change(graph: Graph) -> Graph:
        return graph.with_durations(graph.duration_ns * by_node)

    return change


@remembered
def _copies_of_batches(graph: Graph) -> Mask:
    """Nodes that copy batches to the GPU, or results to the host."""
    trace = graph.timeline.trace
    to_device = np.append(trace.rows_named(trace.gpu.name, lambda text: "HtoD" in text), False)[graph.gpu_row]
    results = np.append(trace.rows_named(trace.gpu.name, lambda text: "DtoH" in text), False)[graph.gpu_row]
    results &= np.append(trace.gpu.bytes, 0)[graph.gpu_row] > LARGEST_SCALAR_BYTES
    return (graph.resource == TRANSFER) & (to_device | results | ~graph.on_gpu) & (graph.phase != OPTIMIZER)


@remembered
def exchanges_tokens(graph: Graph) -> Mask:
    """Nodes of collectives that move tokens between ranks (experts, embedding tables, pipeline stages). Collectives of
    weights and gradients move the same for any batch."""
    timeline = graph.timeline
    trace = timeline.trace
    named = trace.rows_named(trace.gpu.name, EXCHANGE.search)
    if named.any():  # NCCL's SendRecv kernel also runs collectives that have no kernel of their own
        found = find_collectives(timeline).columns
        named[found.row[np.isin(found.kind, _OF_WEIGHTS)]] = False
    ops = np.append(trace.rows_named(trace.ops.name, EXCHANGE.search), False)
    named |= ops[timeline.links.scope] | ops[timeline.links.op]
    return (graph.resource == COMMUNICATION) & graph.on_gpu & np.append(named, False)[graph.gpu_row]


def communication_at_worst(graph: Graph, factor: float) -> Callable[[Graph], Graph]:
    """The change that makes communication grow most with the batch; one rank's recording does not say how much does.

    Exchanges of tokens take `factor` times what was recorded, as if none of it were waiting for another rank. Waits for
    another rank in other collectives are due to that rank's work on its batch, and grow as well.
    """
    exchanges, gpu, waits = exchanges_tokens(graph), graph.timeline.trace.gpu, waiting(graph)
    moves = exchanges & ~waits & np.isin(graph.gpu_row, graph.gpu_row[waits])
    took = factor * np.append(gpu.end_ns - gpu.start_ns, 0)[graph.gpu_row].astype(np.float64)
    grown = np.where(moves, took, np.where(waits, np.where(exchanges, 0.0, factor * graph.duration_ns), 0.0))

    def change(graph: Graph) -> Graph:
        return graph.with_durations(np.where(moves | waits, grown, graph.duration_ns))

    return change


@dataclass(frozen=True, slots=True)
class Grown:
    """What `factor` times the tokens make of each GPU event, on the GPU that it was recorded on."""

    growth: F64
    """Its time with the other batch, divided by its time now."""
    compute_ns: F64
    """Time of its arithmetic with the other batch, at the rate that the GPU reaches; likewise `memory_ns`. 0 if its
    work is not known."""
    memory_ns: F64


def event_growth(
    timeline: Timeline, roofline: Roofline | None, factor: float | F64, rows: float | F64 | None, longer: float = 1.0
) -> F64:
    """For each GPU event of the trace, how many times as long it takes with `factor` times the tokens; see `grown`."""
    return grown(timeline, roofline, factor, rows, longer).growth


def grown(
    timeline: Timeline, roofline: Roofline | None, factor: float | F64, rows: float | F64 | None, longer: float = 1.0
) -> Grown:
    """What another batch makes of every GPU event.

    factor: how many times the tokens. rows: rows of the recorded matrix multiplications of the event's layer, whose
    weights are read once: the tokens of a forward pass, or those that an expert gets. None: not known. longer: how many
    times as long the samples are; arithmetic between the tokens of a sample scales with this, too, and so does all work
    on scores that are written to memory. factor and rows may be one number, or one per event.
    """
    gpu = timeline.trace.gpu
    tokens = np.asarray(factor, np.float64) * np.ones(len(gpu))
    squares = on_attention_scores(timeline)
    arithmetic = tokens * np.where(squares | (timeline.category == CATEGORIES.index("attention")), longer, 1.0)
    tokens = tokens * np.where(squares, longer, 1.0)
    both = np.maximum(arithmetic, tokens)
    once = once_for_each_weight(timeline)
    filled = _filled(timeline, both)
    growth = filled
    compute_after = memory_after = np.zeros(len(gpu))
    if roofline is not None:
        work, limits = roofline.work, roofline.ceilings
        compute, memory = (np.nan_to_num(part) for part in roof_ns(work, limits))
        weights = np.where(squares, 0.0, _weights_ns(timeline, roofline, memory, rows))
        compute_after, memory_after = arithmetic * compute, tokens * (memory - weights) + weights
        # If arithmetic and traffic take equally long they do not overlap completely. bf16 matrix multiplications above
        # 10 µs
        # in 46 recordings of H200s took 1.55, 1.10, 1.17, 1.06 and 1.00 times the longer of the two where the other
        # is 0.84, 0.6, 0.42, 0.3 and 0.21 of it (median programs); the root of the sum of squares is 1.31, 1.17,
        # 1.08, 1.04 and 1.02. So a kernel that more tokens take out of that balance is not assumed to stay as slow
        # as it was.
        before, after = np.hypot(compute, memory), np.hypot(compute_after, memory_after)
        ns = np.maximum((gpu.end_ns - gpu.start_ns).astype(np.float64), 1.0)
        latency = roofline.split.latency_ns.astype(np.float64)
        by_roof = np.where(before > 0, after / np.maximum(before, 1e-9), both)
        more = np.minimum(filled, np.maximum(by_roof, 1.0))
        less = np.maximum(filled, np.minimum(by_roof, 1.0))
        rest = np.maximum(ns - latency, 0) * np.where(both >= 1, more, less) + latency
        roof = np.maximum(compute_after, memory_after)
        least = np.where(both >= 1, roof, np.minimum(roof, ns))
        growth = np.where(work.model, np.maximum(rest, least) / ns, filled)
        compute_after = np.where(once, compute, compute_after)
        memory_after = np.where(once, memory, memory_after)
    growth = np.clip(growth, np.minimum(both, 1.0), np.where(both > 1, 2 * both, 1.0))
    return Grown(np.where(once | (both == 1), 1.0, growth), compute_after, memory_after)


def _filled(timeline: Timeline, factor: F64) -> F64:
    """Growth of kernels whose time is set by their blocks: none until the GPU is full."""
    gpu = timeline.trace.gpu
    named = [
        np.where(axis == np.int32(-1), 1, axis).astype(np.float64).clip(1)
        for axis in (gpu.grid_x, gpu.grid_y, gpu.grid_z)
    ]
    waves = named[0] * named[1] * named[2] / recorded_sms(timeline)
    ratio = np.maximum(1.0, factor * waves) / np.maximum(1.0, waves)
    persistent = (waves > PERSISTENT_BLOCKS) & (waves <= 1) & (factor < 1)
    return np.where((gpu.grid_x > 0) & ~persistent, ratio, factor)


def _weights_ns(timeline: Timeline, roofline: Roofline, memory_ns: F64, rows: float | F64 | None) -> F64:
    """The part of each matmul's memory time that reads weights; 0 if its rows are unknown."""
    work = roofline.work
    if rows is None:
        return np.zeros(len(memory_ns))
    # A matmul over T rows does 2·T operations per weight; this holds for all three matmuls of a layer.
    element = _SIZES[np.where(work.dtype == UNKNOWN, len(DTYPES), work.dtype)]
    bytes_ns = 1e9 / roofline.ceilings.memory_bytes_per_s
    weights = np.minimum(np.nan_to_num(work.flops) / (2 * np.maximum(rows, 1.0)) * element * bytes_ns, memory_ns)
    matmuls = np.isin(timeline.category, [CATEGORIES.index(name) for name in TENSOR_CATEGORIES])
    weights[~matmuls | (timeline.category == CATEGORIES.index("attention"))] = 0
    return weights


@remembered
def once_for_each_weight(timeline: Timeline) -> Mask:
    """Mask of the GPU events that take no longer for more tokens: dequantising, the optimizer, accumulating gradients,
    and other work on weights or their gradients only."""
    ops = timeline.trace.ops
    named = timeline.trace.rows_named(ops.name, lambda text: text == ACCUMULATE)
    accumulates = inside(timeline.nesting, named)
    once = np.isin(timeline.category, [CATEGORIES.index(name) for name in ("dequantize", "optimizer")])
    return once | np.append(accumulates, False)[timeline.links.scope] | on_weights(timeline)
