"""Kernels on another GPU: each keeps how near it came to its roof, and the roof moves.

A kernel's time is its latency, which stays, and the rest, which scales with its roof: the longer of its arithmetic and
its traffic at what the GPU sustains. On another GPU another of the two may be the longer one. A kernel of too few
blocks to fill the chip is also faster only as far as one SM is.

A kernel that moves data and stays well below what the memory sustains is held back by its instructions, too, which
another memory makes no faster. The two overlap in part: they are taken to add as squares do. Of the memory-bound
kernels of three trainings that were recorded on an H200 and on an H100, whose memory has 0.70 of the bandwidth and
whose SMs are the same, each then comes within 4 to 7 % of its time there (mean by time); those that reach
less than 0.4 of the bandwidth take 1.02 times as long, those above 0.9 the whole 1.42 times (two of the three:
benchmarks/other_gpus).

All that needs to know the traffic. Where it is guessed from the tensors of a library's autograd function, a kernel that
seems to use little of the memory more likely has other tensors than instructions that hold it back; see
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
"""Of the SMs. A kernel with fewer blocks leaves most of the chip idle, on any GPU as many SMs
work on it; larger ones are cut again for another chip (persistent kernels have a block for each)."""

_PRODUCTS = tuple(CATEGORIES.index(name) for name in TENSOR_CATEGORIES)


@dataclass(frozen=True, slots=True)
class Scaled:
    """Per GPU event of the trace how many times as long it takes there, and what limits it then."""

    factor: F64
    low: F64
    high: F64
    """The same where what is not known of a kernel, or only guessed, turns out well, or badly."""
    bound: U8


def scaled_kernels(timeline: Timeline, roofline: Roofline, here: Reach, there: Reach, work: Grown) -> Scaled:
    """Every kernel's and copy's time there over its time here; exactly 1 where both are one GPU.

    work: what the batch that is asked for makes of each here.
    """
    gpu = timeline.trace.gpu
    ns = np.maximum((gpu.end_ns - gpu.start_ns).astype(np.float64) * work.growth, 1.0)
    by_compute, by_memory = _compute_ratio(roofline, here, there), _memory_ratio(roofline, here, there)
    known = roofline.split.bound != NO_BOUND
    by_clock, by_fill = _clock_ratio(here, there), _fill_ratio(timeline, here, there)

    def scaled(memory_ns: F64, latency: F64) -> tuple[F64, U8]:
        # What a copy over the link takes in addition to its bytes is the link's, too.
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
    arithmetic = np.isin(timeline.category, _PRODUCTS)
    alone = np.where(arithmetic, np.sqrt(by_compute * by_memory), _streamed(by_memory, by_clock))
    usual = np.where(np.isnan(usual), alone, usual)
    usual[timeline.category == COMMUNICATION] = 1.0  # other links than the recorded ones are no one's to guess
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
    # A kernel of so little that it may be latency alone stays as it was guessed.
    doubtful = (
        roofline.work.guessed & (usual > floor) & ((memory_ns < usual) | (memory_ns > calibrated.MOST_REACH.value * ns))
    )
    if not doubtful.any():
        return memory_ns, memory_ns, memory_ns, latency
    least = np.where(doubtful & (memory_ns > ns), 1.0, memory_ns)  # next to none, where the guess says nothing
    likely, most = (np.where(doubtful, part, memory_ns) for part in (usual, room))
    return least, likely, most, np.where(doubtful, np.minimum(latency, floor), latency)


def _streamed(by_memory: F64, by_clock: float) -> F64:
    """Ratio of the times there and here of a kernel of which it is only known that it is no matrix multiplication."""
    traffic = calibrated.USUAL_REACH.value**2
    return np.sqrt(1 + traffic * (by_memory**2 - 1) + (1 - traffic) * (by_clock**2 - 1))


def _held_back(ns: F64, compute_ns: F64, memory_ns: F64) -> F64:
    """Time of each memory-bound kernel in addition to its traffic; 0 for a compute-bound one, all of whose time scales
    with its arithmetic."""
    moves = memory_ns > compute_ns
    return np.where(moves, np.sqrt(np.maximum(ns**2 - np.minimum(memory_ns, ns) ** 2, 0.0)), 0.0)


def _clock_ratio(here: Reach, there: Reach) -> float:
    """Time of instructions there over here: all SMs at their boost clock; 1 where either is not known."""
    ours, theirs = ((gpu.multiprocessors or 0) * (gpu.boost_mhz or 0) for gpu in (here.gpu, there.gpu))
    return ours / theirs if ours and theirs else 1.0


def on_graph(graph: Graph, factor: F64) -> Graph:
    """The graph with each GPU event's time multiplied by its factor."""
    return graph.with_durations(graph.duration_ns * np.where(graph.on_gpu, np.append(factor, 1.0)[graph.gpu_row], 1.0))


def _compute_ratio(roofline: Roofline, here: Reach, there: Reach) -> F64:
    """Per event the time of its arithmetic there over here, by its format; half precision where it has none."""
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
    """What a kernel of few blocks loses, or gains, because chips are split into SMs differently."""
    gpu = timeline.trace.gpu
    ours, theirs = here.gpu.multiprocessors, there.gpu.multiprocessors
    if not ours or not theirs:
        return np.ones(len(gpu))
    blocks = np.ones(len(gpu))
    for axis in (gpu.grid_x, gpu.grid_y, gpu.grid_z):
        blocks *= np.where(axis == np.int32(-1), 1, axis).astype(np.float64).clip(1)
    few = (gpu.grid_x > 0) & (blocks < FEW_BLOCKS * ours)
    # Of each chip `blocks` SMs work, so the rates that count are those of that many SMs.
    return np.where(few, np.minimum(blocks / ours, 1.0) / np.minimum(blocks / theirs, 1.0), 1.0)


def _usual(timeline: Timeline, factor: F64, ns: F64, known: np.ndarray) -> F64:
    """Per event the mean factor, by time, of the kernels of its name whose work is known, else of those of its
    category; NaN where there are none."""

    def mean(keys: np.ndarray) -> F64:
        distinct, inverse = np.unique(keys, return_inverse=True)
        weight = np.bincount(inverse[known], weights=ns[known], minlength=len(distinct))
        total = np.bincount(inverse[known], weights=(factor * ns)[known], minlength=len(distinct))
        return np.divide(total, weight, out=np.full(len(distinct), np.nan), where=weight > 0)[inverse]

    named = mean(timeline.trace.gpu.name)
    return np.where(np.isnan(named), mean(timeline.category), named)
