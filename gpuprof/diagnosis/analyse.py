"""The replayed part of a diagnosis: the graph of the steps, the profiler's cost taken out, what binds, and the
fixes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.costs.roofline import Roofline
from gpuprof.costs.split import COMPUTE, LATENCY, MEMORY, NO_BOUND
from gpuprof.diagnosis.diagnosis import Replay
from gpuprof.diagnosis.kernels import category_bound
from gpuprof.diagnosis.range_times import SAMPLED_NS
from gpuprof.replay.build import build
from gpuprof.replay.carried_in import carried_over
from gpuprof.replay.collectives import model_collectives
from gpuprof.replay.graph import Graph
from gpuprof.replay.mean_step import MeanStep
from gpuprof.replay.planning import without_planning
from gpuprof.replay.profiler_fit import Removal, at_step, remove_profiler
from gpuprof.replay.sensitivity import Sensitivities, sensitivities
from gpuprof.replay.simulate import simulate, step_of
from gpuprof.replay.transform import scale
from gpuprof.timeline.activity import activity
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.devices import COMPUTE as COMPUTE_WORK
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import F64, KERNEL, U8

WORST_ERROR = 0.05
"""A graph that misses the recorded steps by more than this predicts nothing."""
UNLAUNCHED = 0.25
"""With more of the GPU's time than this in work whose launch was not recorded, nothing about the host can be
replayed."""

UNEXPLAINED = calibrated.UNEXPLAINED.value
"""The same for time that no work accounts for."""

USED = 20.0
"""Percent. Where tensor cores and memory are both used less than this, neither is what the kernel waits for: the least
of what limits a kernel in practice is twice that."""

SHORT_NS = 4_000
"""Kernels shorter than this of which nothing else is known are limited by their launch and ramp-up, not by what they
compute or move."""

READS_WEIGHTS = 128
"""Sequences that get a new token at once, up to which reading weights takes longer than multiplying by them: each
weight of 2 bytes is read for 2 operations a sequence, and GPUs do 150 (A100) to 295 (H100) operations in bf16 in the
time of a byte, by their datasheets."""

_CODES: dict[str | None, int] = {"compute": COMPUTE, "memory": MEMORY, "latency": LATENCY}


@dataclass(frozen=True, slots=True)
class Analysis:
    """One recording replayed."""

    replay: Replay
    removal: Removal
    sensitivities: Sensitivities
    mean: MeanStep
    """How the mean step follows from a graph."""


def analyse(
    timeline: Timeline,
    roofline: Roofline | None,
    measured_ns: float | None,
    spread: tuple[float, float] | None,
    mean_of: Callable[[Graph], MeanStep] = MeanStep,
    of_all_ns: float | None = None,
    plans_apart: bool = False,
) -> tuple[Replay, Analysis | None]:
    """Replays the window; no analysis where that fails, and why it did.

    `measured_ns`, `spread`: an unprofiled step and its 80 % interval, where it was timed; `mean_of`: what follows from
    the graph without the profiler for the mean step; `of_all_ns`: the step of all ranks, replayed together, which that
    of one is taken to be where none was timed; `plans_apart`: the unprofiled step is one without new shapes, so what
    the recorded steps planned for theirs is taken out.
    """
    graph = build(timeline)
    if not len(graph) or not graph.on_gpu.any():
        return Replay(None, False, "no GPU work to replay"), None
    graph = model_collectives(carried_over(graph))
    error = replay_error(graph)
    if not error <= WORST_ERROR:
        text = f"the replay misses the recorded steps by {100 * error:.0f} %"
        return Replay(error, False, text), None
    lost = _unlaunched_share(timeline)
    if lost > UNLAUNCHED:
        text = f"{100 * lost:.0f} % of the GPU's time is in work whose launch was not recorded"
        return Replay(error, False, text), None
    unknown = 1 - _explained(graph)
    if unknown > UNEXPLAINED:
        idle = min(device.idle_ns for device in timeline.devices) / (timeline.window[1] - timeline.window[0])
        text = f"{100 * unknown:.0f} % of the step is waiting that the recording does not explain"
        if unknown > idle:
            text += ", of the CPU or of single streams while other work keeps the GPU busy"
        return Replay(error, False, text), None
    if plans_apart:
        graph = without_planning(graph)
    removal = remove_profiler(graph, measured_ns, spread)
    if measured_ns is None and of_all_ns:
        removal = at_step(graph, removal, of_all_ns)
    mean = mean_of(removal.graph)
    found = sensitivities(removal.graph, bound_parts(timeline, roofline), mean)
    replay = Replay(error, True, steps=graph.steps)
    return replay, Analysis(replay, removal, found, mean)


def _counted(timeline: Timeline) -> U8:
    """Per GPU event what its kernel is limited by as the counters tell; NO_BOUND where they do not."""
    gpu = timeline.trace.gpu
    found = activity(timeline, np.where(gpu.kind == KERNEL, gpu.name, -1).astype(np.int64))
    code = np.full(len(timeline.trace.strings) + 1, NO_BOUND, np.uint8)
    for name, one in found.items():
        if one.busy_ns >= SAMPLED_NS and one.tensor is not None and one.dram is not None:
            more = COMPUTE if one.tensor > one.dram else MEMORY
            code[name] = more if max(one.tensor, one.dram) >= USED else LATENCY
    return np.where(gpu.kind == KERNEL, code[gpu.name], NO_BOUND).astype(np.uint8)


def replay_error(graph: Graph) -> float:
    """How far the untouched graph's steps end from where they ended, at most, as a share of the window."""
    low, _ = graph.timeline.window
    recorded = (graph.timeline.steps.end_ns - low).astype(np.float64)
    found = simulate(graph).step_end_ns
    return float(np.abs(found - recorded).max() / recorded[-1])


def _explained(graph: Graph) -> float:
    """The part of a step that its work accounts for: with all work twice as fast a step of nothing else is halved."""
    step = step_of(graph)
    faster = scale(graph, host=0.5, input=0.5, transfer=0.5, communication=0.5, device=0.5)
    return 2 * (1 - step_of(faster) / step) if step > 0 else 0.0


def _unlaunched_share(timeline: Timeline) -> float:
    gpu, rows = timeline.trace.gpu, timeline.members
    ns = (gpu.end_ns - gpu.start_ns)[rows].clip(0)
    total = float(ns.sum())
    return float(ns[timeline.links.call[rows] < 0].sum()) / total if total else 0.0


def limits(timeline: Timeline, roofline: Roofline | None) -> U8:
    """Per GPU event what limits it: by its own work, else by what the GPU's counters showed while its like ran, else
    latency if it is a short kernel, else what usually limits its like."""
    gpu = timeline.trace.gpu
    whole = (gpu.end_ns - gpu.start_ns).clip(0).astype(np.float64)
    bound = np.full(len(gpu), NO_BOUND, np.uint8) if roofline is None else roofline.split.bound
    usual = _usual(timeline)
    if timeline.host.known:
        usual = np.where((gpu.kind == KERNEL) & (whole < SHORT_NS), np.uint8(LATENCY), usual)
    for other in (_counted(timeline), usual):
        bound = np.where(bound == NO_BOUND, other, bound)
    return bound


def bound_parts(timeline: Timeline, roofline: Roofline | None) -> dict[str, F64]:
    """Per GPU event its whole time under what limits it (see `limits`)."""
    gpu, bound = timeline.trace.gpu, limits(timeline, roofline)
    whole = (gpu.end_ns - gpu.start_ns).clip(0).astype(np.float64)
    return {name: np.where(bound == code, whole, 0.0) for name, code in _CODES.items() if name}


def _usual(timeline: Timeline) -> U8:
    """Per GPU event what usually limits its like. Of a recording of the GPU alone that is not known: the same kernel is
    limited by something else in another program. Where each sequence gets one new token all kernels read weights, or
    the cache, and do little else, those of graphs that were recorded as a whole too."""
    gpu, work = timeline.trace.gpu, timeline.workload
    if not timeline.host.known and not work.is_inference:
        return np.full(len(gpu), NO_BOUND, np.uint8)
    usual = np.array([_CODES.get(category_bound(name), NO_BOUND) for name in CATEGORIES], np.uint8)[timeline.category]
    if work.decodes and (work.batch or 1) <= READS_WEIGHTS:
        usual = np.where((gpu.kind == KERNEL) & (timeline.kind == COMPUTE_WORK), np.uint8(MEMORY), usual)
    return usual


def part_shares(timeline: Timeline, roofline: Roofline | None, device: int) -> dict[str, float]:
    """compute | memory | latency → the share of a device's compute kernels that it limits; they sum to 1 at most."""
    gpu, rows = timeline.trace.gpu, timeline.members
    rows = rows[(timeline.kind[rows] == COMPUTE_WORK) & (gpu.device[rows] == device)]
    total = float((gpu.end_ns - gpu.start_ns)[rows].clip(0).sum())
    return {name: float(ns[rows].sum()) / max(total, 1.0) for name, ns in bound_parts(timeline, roofline).items()}
