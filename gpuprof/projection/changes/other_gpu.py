"""Kernels on another GPU: each keeps its efficiency relative to its roof, and the roof moves.

A kernel's time is its latency, which stays, plus the rest, which scales with its roof: the longer of its arithmetic and
its traffic at the rates that the GPU sustains. On another GPU the other of the two may be the longer one. A kernel with
too few blocks to fill the GPU scales with per-SM speed.

A kernel that moves data and stays well below what the memory sustains is also limited by its instructions, which
another memory does not make faster. The two overlap in part: their squares are assumed to add. For the memory-bound
kernels of three trainings that were recorded on an H200 and on an H100, whose memory has 0.70 of the bandwidth and
whose SMs are the same, the predicted times are then within 4 to 7 % (mean by time); kernels that reach less than 0.4 of
the bandwidth take 1.02 times as long, those above 0.9 the whole 1.42 times (two of the three: benchmarks/other_gpus).

All this requires that the traffic is known. If it is guessed from the tensors of a library's autograd function, a
kernel that seems to use little of the bandwidth more likely has other tensors than instructions that limit it; see
calibration.projection.USUAL_REACH.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.calibration import projection as calibrated
from gpuprof.costs.dtypes import DTYPES, UNKNOWN
from gpuprof.costs.roofline import Roofline
from gpuprof.costs.split import COMPUTE, LATENCY, MEMORY, NO_BOUND
from gpuprof.projection.changes.batch import Grown
from gpuprof.projection.sustained_rates import Reach
from gpuprof.replay.graph import Graph
from gpuprof.timeline.categories import CATEGORIES, COMMUNICATION, TENSOR_CATEGORIES
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import F64, U8
from gpuprof.units import Assumed, Share

FEW_BLOCKS: Assumed[Share] = 0.5
"""Blocks, as a share of the SMs. A kernel with fewer leaves most of the GPU idle, and runs on the same number of SMs on
any GPU; larger kernels are divided differently for another GPU (persistent kernels have one block per SM)."""

_MATMULS = tuple(CATEGORIES.index(name) for name in TENSOR_CATEGORIES)


@dataclass(frozen=True, slots=True)
class Scaled:
    """For each GPU event of the trace, how many times as long it takes there, and what then limits it."""

    factor: F64
    low: F64
    high: F64
    """The same if what is unknown or guessed about a kernel turns out badly; `low`: well."""
    bound: U8


def scaled_kernels(timeline: Timeline, roofline: Roofline, here: Reach, there: Reach, work: Grown) -> Scaled:
    """Every kernel's and copy's time there over its time here; exactly 1 if both are the same GPU.

    work: what the requested batch makes of each event here.
    """
    gpu = timeline.trace.gpu
    ns = np.maximum((gpu.end_ns - gpu.start_ns).astype(np.float64) * work.growth, 1.0)
    by_compute, by_memory = _compute_ratio(roofline, here, there), _memory_ratio(roofline, here, there)
    known = roofline.split.bound != NO_BOUND
    by_clock, by_fill = _clock_ratio(here, there), _fill_ratio(timeline, here, there)

    def scaled(memory_ns: F64, latency: F64) -> tuple[F64, U8]:
        # What a copy over the link takes in addition to its bytes is due to the link, too.
        held = np.where(roofline.work.over_link, 0.0, _held_back(ns - latency, work.compute_ns, memory_ns))
        before = np.where(known, np.maximum(work.compute_ns, np.hypot(memory_ns, held)), 0.0)
        compute_there = work.compute_ns * by_compute
        memory_there = np.hypot(memory_ns * by_memory, held * by_clock)
        after = np.where(known, np.maximum(compute_there, memory_there), 0.0)
        ratio = np.divide(after, before, out=np.ones(len(ns)), where=before > 0) * by_fill
        bound = np.where(compute_there >= memory_there, COMPUTE, MEMORY).astype(np.uint8)
        bound[latency > after] = LATENCY
        bound[~known] = NO_BOUND
        return (latency + (ns - latency) * ratio) / ns, bound

    latency = np.minimum(roofline.split.latency_ns, ns)
    least, likely, most, likely_latency = _traffic(roofline, ns, work.memory_ns, latency)
    factor, bound = scaled(likely, likely_latency)
    ends = [factor] if likely is least else [factor, scaled(least, latency)[0], scaled(most, likely_latency)[0]]
    usual = _usual(timeline, factor, ns, known)
    arithmetic = np.isin(timeline.category, _MATMULS)
    alone = np.where(arithmetic, np.sqrt(by_compute * by_memory), _streamed(by_memory, by_clock))
    usual = np.where(np.isnan(usual), alone, usual)
    usual[timeline.category == COMMUNICATION] = 1.0  # times over other links than the recorded one cannot be guessed
    best = np.minimum(np.minimum(by_compute, by_memory), 1.0)
    worst = np.maximum(np.maximum(by_compute, by_memory), 1.0)
    return Scaled(
        np.where(known, factor, usual), np.where(known, np.minimum.reduce(ends), np.minimum(best, usual)),
        np.where(known, np.maximum.reduce(ends), np.maximum(worst, usual)), bound,
    )  # fmt: skip


def _traffic(roofline: Roofline, ns: F64, memory_ns: F64, latency: F64) -> tuple[F64, F64, F64, F64]:
    """Time of each event's memory traffic here: lowest, expected and highest; and the latency that scales with the last
    two. The three are equal unless the traffic is an estimate that is lower than usual or higher than possible."""
    floor = roofline.ceilings.launch_floor_ns
    room = np.maximum(ns - floor, 0.0)
    usual = calibrated.USUAL_REACH.value * room
    # A kernel with so little work that it may be latency alone keeps its guessed traffic.
    doubtful = (
        roofline.work.guessed & (usual > floor) & ((memory_ns < usual) | (memory_ns > calibrated.MOST_REACH.value * ns))
    )
    if not doubtful.any():
        return memory_ns, memory_ns, memory_ns, latency
    least = np.where(doubtful & (memory_ns > ns), 1.0, memory_ns)  # next to none, as such a guess is worthless
    likely, most = (np.where(doubtful, part, memory_ns) for part in (usual, room))
    return least, likely, most, np.where(doubtful, np.minimum(latency, floor), latency)


def _streamed(by_memory: F64, by_clock: float) -> F64:
    """Time there over time here of a kernel of which it is only known that it is not a matrix multiplication."""
    traffic = calibrated.USUAL_REACH.value**2
    return np.sqrt(1 + traffic * (by_memory**2 - 1) + (1 - traffic) * (by_clock**2 - 1))


def _held_back(ns: F64, compute_ns: F64, memory_ns: F64) -> F64:
    """Time of each memory-bound kernel in addition to its traffic; 0 for a compute-bound one, whose time scales
    entirely with its arithmetic."""
    moves = memory_ns > compute_ns
    return np.where(moves, np.sqrt(np.maximum(ns**2 - np.minimum(memory_ns, ns) ** 2, 0.0)), 0.0)


def _clock_ratio(here: Reach, there: Reach) -> float:
    """Time of instructions there over time here, with all SMs at their boost clock; 1 if either is not known."""
    ours, theirs = ((gpu.multiprocessors or 0) * (gpu.boost_mhz or 0) for gpu in (here.gpu, there.gpu))
    return ours / theirs if ours and theirs else 1.0


def on_graph(graph: Graph, factor: F64) -> Graph:
    """The graph with each GPU event's time multiplied by its factor."""
    return graph.with_durations(graph.duration_ns * np.where(graph.on_gpu, np.append(factor, 1.0)[graph.gpu_row], 1.0))


def _compute_ratio(roofline: Roofline, here: Reach, there: Reach) -> F64:
    """For each event, the time of its arithmetic there over that here, by format; that of half precision if it has
    none."""
    half = here.half_flops / there.half_flops if there.half_flops else 1.0
    table = np.full(256, half)
    for code, name in enumerate(DTYPES):
        ours, theirs = here.rate(name), there.rate(name)
        if ours and theirs:
            table[code] = ours / theirs
    table[UNKNOWN] = half
    return table[roofline.work.dtype]


def _memory_ratio(roofline: Roofline, here: Reach, there: Reach) -> F64:
    link = 1.0
    if here.link_bytes_per_s and there.link_bytes_per_s:
        link = here.link_bytes_per_s / there.link_bytes_per_s
    return np.where(roofline.work.over_link, link, here.memory_bytes_per_s / there.memory_bytes_per_s)


def _fill_ratio(timeline: Timeline, here: Reach, there: Reach) -> F64:
    """Factor for kernels with few blocks, which lose or gain because GPUs are divided into SMs differently."""
    gpu = timeline.trace.gpu
    ours, theirs = here.gpu.multiprocessors, there.gpu.multiprocessors
    if not ours or not theirs:
        return np.ones(len(gpu))
    blocks = np.ones(len(gpu))
    for axis in (gpu.grid_x, gpu.grid_y, gpu.grid_z):
        blocks *= np.where(axis == np.int32(-1), 1, axis).astype(np.float64).clip(1)
    few = (gpu.grid_x > 0) & (blocks < FEW_BLOCKS * ours)
    # On either GPU `blocks` SMs work, so the rates of that many SMs count.
    return np.where(few, np.minimum(blocks / ours, 1.0) / np.minimum(blocks / theirs, 1.0), 1.0)


def _usual(timeline: Timeline, factor: F64, ns: F64, known: np.ndarray) -> F64:
    """For each event the mean factor, weighted by time, of the kernels of the same name whose work is known, else of
    those of the same category; NaN if there are none."""

    def mean(keys: np.ndarray) -> F64:
        distinct, inverse = np.unique(keys, return_inverse=True)
        weight = np.bincount(inverse[known], weights=ns[known], minlength=len(distinct))
        total = np.bincount(inverse[known], weights=(factor * ns)[known], minlength=len(distinct))
        return np.divide(total, weight, out=np.full(len(distinct), np.nan), where=weight > 0)[inverse]

    named = mean(timeline.trace.gpu.name)
    return np.where(np.isnan(named), mean(timeline.category), named)
