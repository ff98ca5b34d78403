"""How long the GPU waits for the CPU in a step, which is the most that a faster CPU can gain.

A gap of a device lasts until the CPU has launched the work that ends it, and from then on until that work begins. The
first part is the CPU's. The second is the latency of a launch, or waiting for something else that may not even be in
the recording (another rank, a dependency of streams): launching earlier does not end it earlier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.replay.graph import INPUT, Graph, launcher_of
from gpuprof.replay.simulate import in_loop
from gpuprof.timeline.intervals import Cover, Intervals, complement, union
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import F64, I64
from gpuprof.units import Assumed, Ns

LATENCY_NS: Assumed[Ns] = 20_000.0
"""Longest time from a launch to its kernel on an idle GPU, ns; if it takes longer, the kernel waits for something else.
Launches that are made early enough hide it."""


@dataclass(frozen=True, slots=True)
class CpuWaits:
    """Waits in one step of the loop, ns."""

    floor_ns: float
    """The step in which the GPU never waits for the CPU."""
    host_floor_ns: float
    """The step in which it waits for the CPU only while that prepares batches: the step if all other CPU work took no
    time, since `host` is the CPU without its input."""
    cpu_ns: float
    """Time that the GPU waits for the CPU, including launch latency."""
    launched_ns: float
    """Time that it waits for work that is already launched."""


@remembered
def cpu_waits(graph: Graph) -> CpuWaits:
    """What the GPU waits for in a step of the loop; of several GPUs, the one that waits most for the CPU."""
    schedule = in_loop(graph)
    marks = np.concatenate([schedule.finished_ns[-2, -1:], schedule.finished_ns[-1]])
    gpu = np.flatnonzero(graph.on_gpu)
    device = graph.timeline.trace.gpu.device[graph.gpu_row[gpu]]
    cpu, launched, fetching = np.zeros(graph.steps), np.zeros(graph.steps), np.zeros(graph.steps)
    nodes = np.flatnonzero((graph.lane >= 0) & (graph.resource == INPUT))
    batches = _repeated(schedule.start_ns[nodes], schedule.end_ns[nodes], marks)
    for one in np.unique(device).tolist():
        mine = _waits(graph, gpu[device == one], schedule.start_ns, schedule.end_ns, marks, batches)
        if mine[0].sum() > cpu.sum() or not cpu.any():
            cpu, launched, fetching = mine
    each = schedule.each_ns
    middle = np.median if schedule.has_usual_step else np.mean
    floor, host_floor = (max(float(middle(each - waits)), 0.0) for waits in (cpu, cpu - fetching))
    return CpuWaits(floor, host_floor, float(cpu.mean()), float(launched.mean()))


def _repeated(start_ns: F64, end_ns: F64, marks: F64) -> Intervals:
    """Spans of a round with those of the round before and after it: work that runs past a round's end is that of the
    round before running into its beginning."""
    low, high = round(float(marks[0])), round(float(marks[-1]))
    start, end = np.round(start_ns).astype(np.int64), np.round(end_ns).astype(np.int64)
    turns = (-(high - low), 0, high - low)
    return union(np.concatenate([start + t for t in turns]), np.concatenate([end + t for t in turns]))


def _waits(
    graph: Graph, nodes: I64, start_ns: F64, end_ns: F64, marks: F64, batches: Intervals
) -> tuple[F64, F64, F64]:
    """Time per step, ns, that a device whose work the nodes are waits for the CPU, for work that is launched, and the
    part of the former in which the CPU prepares batches."""
    low, high = round(float(marks[0])), round(float(marks[-1]))
    start = np.round(start_ns[nodes]).astype(np.int64)
    gaps = complement(_repeated(start_ns[nodes], end_ns[nodes], marks), low, high)
    order = np.argsort(start, kind="stable")
    k = np.searchsorted(start[order], gaps.end, side="left")
    known = k < len(order)
    awaited = nodes[order[np.minimum(k, len(order) - 1)]]
    launch = launcher_of(graph)[awaited]
    known &= launch >= 0
    # If no launch is known, the wait may be for the CPU.
    until = np.where(known, end_ns[np.maximum(launch, 0)], gaps.end.astype(np.float64)).clip(gaps.start, gaps.end)
    cpu, launched = until - gaps.start, gaps.end - until
    fetching = Cover(batches).between(gaps.start, np.round(until).astype(np.int64)).astype(np.float64)
    latency = np.minimum(launched, LATENCY_NS)
    cpu, launched = cpu + latency, launched - latency
    step = np.searchsorted(marks[1:-1], gaps.end - 1, side="right")
    count = len(marks) - 1
    of_cpu, of_launched, of_batches = np.zeros(count), np.zeros(count), np.zeros(count)
    np.add.at(of_cpu, step, cpu)
    np.add.at(of_launched, step, launched)
    np.add.at(of_batches, step, fetching)
    return of_cpu, of_launched, of_batches
