"""What would shorten the step: simulates it with each resource twice as fast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpuprof.bounds import Signed
from gpuprof.replay.graph import DEVICE, Graph
from gpuprof.replay.mean_step import MeanStep
from gpuprof.replay.several_steps import SimulatedTogether
from gpuprof.replay.transform import scale, without_resource
from gpuprof.tracefile.trace import F64


@dataclass(frozen=True, slots=True)
class Sensitivities:
    """2 · (T − T(twice as fast)) / T per resource: 1 where doubling it halves the step, 0 where it changes nothing.

    `compute`, `memory` and `latency` are parts of `device`: only that part of each kernel is twice as fast. None
    where the kernels' FLOPs and bytes are not known.
    """

    host: Signed[float]
    input: Signed[float]
    transfer: Signed[float]
    communication: Signed[float]
    device: Signed[float]
    compute: Signed[float] | None = None
    memory: Signed[float] | None = None
    latency: Signed[float] | None = None


def sensitivities(graph: Graph, parts_ns: dict[str, F64] | None = None, mean: MeanStep | None = None) -> Sensitivities:
    """Simulates the graph with each resource twice as fast.

    `parts_ns`: per GPU event of the trace the compute-, memory- and latency-limited part of its time. `mean`: how the
    mean step follows from a graph; without it the usual step of the graph is what counts.
    """
    mean = mean or MeanStep(graph)
    step = mean.of(graph)

    together = SimulatedTogether(graph)

    def gain(faster: Graph, resource: str = "device") -> float:
        then = mean.of_step(_simulated(mean, graph, faster, resource), faster={resource: 0.5})
        return max(2 * (step - then) / step, 0.0) if step > 0 else 0.0

    def begin(faster: Graph, resource: str = "device") -> Callable[[], float]:
        return together.begin(mean.ready(faster), partial(gain, faster, resource))

    gains = {
        resource: begin(scale(graph, **{resource: 0.5}), resource)
        for resource in ("host", "input", "transfer", "communication", "device")
    }
    for name, ns in (parts_ns or {}).items():
        shorter = graph.with_durations(graph.duration_ns - 0.5 * _share(graph, ns) * graph.duration_ns)
        gains[name] = begin(shorter)
    return Sensitivities(**{name: found() for name, found in gains.items()})


def gain_without(graph: Graph, mean: MeanStep | None = None) -> Callable[[str], float]:
    """The share of the mean step that is gained when a resource takes no time at all, as a function of its name."""
    mean = mean or MeanStep(graph)

    def gain(resource: str) -> float:
        simulated = _simulated(mean, graph, without_resource(graph, resource), resource)
        return 1 - mean.of_step(simulated, faster={resource: 0.0}) / mean.of(graph)

    return gain


def _simulated(mean: MeanStep, graph: Graph, faster: Graph, resource: str) -> float:
    """The simulated step of a graph with a faster resource, ns. A CPU that is faster at everything else could hide
    preparing batches behind the GPU's work; waiting for batches still counts as input."""
    if resource == "host":
        return mean.with_faster_cpu(graph, faster, same_input=True)
    return mean.simulated(faster)


def _share(graph: Graph, part_ns: F64) -> F64:
    """Per node: which share of its time the part is; 0 for all but compute kernels."""
    kernels = np.flatnonzero(graph.resource == DEVICE)
    share = np.zeros(len(graph))
    rows = graph.gpu_row[kernels]
    recorded = (graph.recorded_end_ns - graph.recorded_start_ns)[kernels]
    share[kernels] = np.divide(part_ns[rows], recorded, out=np.zeros(len(rows)), where=recorded > 0)
    return share
