"""The verdict: what would shorten the step, read off the sensitivities, and why.

A step is bound by what shortens it most when it is twice as fast. Where two resources come so close that noise decides,
the one whose complete absence would gain more is named: waiting can be taken away, work only made faster.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gpuprof.diagnosis.estimate import host_causes
from gpuprof.diagnosis.gaps import CAUSES
from gpuprof.diagnosis.model import Bound, Family, Verdict
from gpuprof.replay.collectives import communication_cause
from gpuprof.replay.graph import SYNC, Graph
from gpuprof.replay.mean_step import HOST_LUMPS, MeanStep
from gpuprof.replay.profiler_fit import Removal
from gpuprof.replay.sensitivity import CLOSE, SMALL, Sensitivities, sensitivities
from gpuprof.replay.simulate import ROUNDS, simulate
from gpuprof.replay.transform import scale, scaled, without_edges
from gpuprof.tracefile.model import F64

RESOURCES: tuple[Bound, ...] = ("host", "input", "transfer", "communication")
PARTS: tuple[Bound, ...] = ("compute", "memory", "latency")
KNOWN = 0.5
"""With less than this part of what binds known, what limits the rest would decide."""
DRAWS = 40
ERROR = 0.03
"""Standard deviation of a sensitivity for what the graph does not know: gaps between kernels, clocks, other
processes."""
CEILING_ERROR = 0.1
"""The same of the kernels' split, relative: measured ceilings of one kind of GPU differ by this much between
sources."""

FAMILIES: dict[str, Family] = {
    "compute": "compute", "memory": "memory", "host": "host", "input": "host", "transfer": "host",
}  # fmt: skip


def bound_of(found: Sensitivities, graph: Graph | None = None, mean: MeanStep | None = None) -> Bound | None:
    """What binds the step; None where that is the GPU, and what most of its kernels do is not known.

    `graph`, `mean`: to choose between two that are close by what their absence would gain.
    """
    values: dict[Bound | str, float] = {name: getattr(found, name) for name in (*RESOURCES, "device")}
    first, second = sorted(values, key=lambda name: -values[name])[:2]
    if values[first] < SMALL:
        return "balanced"
    if values[first] - values[second] < CLOSE:
        if graph is None:
            return "balanced"
        gains = {name: _without(graph, mean or MeanStep(graph), name) for name in (first, second)}
        first, second = sorted(gains, key=lambda name: -gains[name])
        if gains[first] - gains[second] < CLOSE:
            return "balanced"
    return device_part(found) if first == "device" else first  # type: ignore[return-value]


def device_part(found: Sensitivities) -> Bound | None:
    """Which part of the kernels binds; memory where the split is not known, as most kernels are bound by that. None
    where most of what binds is known to be none of the three: CUDA graphs recorded as a whole, say."""
    parts = {name: getattr(found, name) for name in PARTS}
    if any(value is None for value in parts.values()):
        return "memory"
    if sum(parts.values()) < KNOWN * found.device:
        return None
    first, second = sorted(parts, key=lambda name: -parts[name])[:2]
    return "balanced" if parts[first] - parts[second] < CLOSE else first  # type: ignore[return-value]


def _without(graph: Graph, mean: MeanStep, resource: str) -> float:
    """What the step loses, as a share, when a resource takes no time at all."""
    return 1 - mean.of(scale(graph, **{resource: 0.0}), faster={resource: 0.0}) / mean.of(graph)


def host_cause(graph: Graph) -> str:
    """What of the host's time binds: launching work, Python in between, allocations, or waiting itself for the device.

    The waits of synchronising calls count with what the step gains without them, refilling the queue included; those
    of calls that give memory back (cudaFree waits for the device) are the allocator's.
    """
    step = simulate(graph, ROUNDS).step_ns
    cause = host_causes(graph)
    waits = graph.edges.kind == SYNC
    of_allocator = waits & (cause == CAUSES.index("allocator"))[graph.edges.targets()]
    gains = {}
    for name in ("launch", "python", "allocator"):
        nodes = (cause == CAUSES.index(name)) & (graph.lane >= 0)
        if nodes.any():
            free = without_edges(graph, of_allocator) if name == "allocator" and of_allocator.any() else graph
            waited = simulate(free, ROUNDS).step_ns if free is not graph else step
            gains[name] = step - waited + 2 * (waited - simulate(scaled(free, nodes, 0.5), ROUNDS).step_ns)
    waits &= ~of_allocator
    if waits.any():
        gains["sync"] = step - simulate(without_edges(graph, waits), ROUNDS).step_ns
    return max(gains, key=lambda name: gains[name]) if gains else "launch"


def judge(
    removal: Removal,
    found: Sensitivities,
    parts_ns: dict[str, F64] | None,
    summary: str,
    mean: MeanStep | None = None,
    ends: tuple[float, float] | None = None,
) -> Verdict:
    """The verdict on the mean step with its cause and how sure it is; `ends`: of the 80 % interval of the mean."""
    graph = removal.graph
    mean = mean or MeanStep(graph)
    bound = bound_of(found, graph, mean)
    cause = None
    if bound == "host":
        cause = _lump(graph, mean) or host_cause(graph)
    elif bound == "communication":
        cause = communication_cause(graph)
    if bound is None:
        text = f"{summary} What limits its work was not recorded."
        return Verdict(bound=None, family=None, cause=None, confidence=None, summary=text)
    return Verdict(
        bound=bound,
        family=FAMILIES.get(bound, "other"),
        cause=cause,
        confidence=confidence(removal, found, bound, parts_ns, mean, ends),
        summary=summary,
    )


def _lump(graph: Graph, mean: MeanStep) -> str | None:
    """The work that comes in some steps only, where that costs more than the host does in the usual step."""
    lumps = {cause: ns for cause, ns in mean.lumps_ns.items() if cause in HOST_LUMPS}
    largest = max(lumps, key=lambda cause: lumps[cause], default=None)
    if largest is None:
        return None
    usual = mean.of(graph) - mean.of(scale(graph, host=0.5))
    return largest if 0.5 * lumps[largest] > usual else None


def confidence(
    removal: Removal,
    found: Sensitivities,
    bound: Bound,
    parts_ns: dict[str, F64] | None,
    mean: MeanStep | None = None,
    ends: tuple[float, float] | None = None,
) -> float:
    """The share of draws in which the verdict stays.

    A draw takes the host's time as it is, or at either end of what it may be, the mean step likewise where some steps
    are longer than the usual one, and adds noise to every sensitivity.
    """
    cases = [found, found, *(sensitivities(graph, parts_ns, mean) for graph in (removal.quicker, removal.slower))]
    if mean is not None and ends is not None and mean.has_excess:
        cases += [sensitivities(removal.graph, parts_ns, mean.with_mean(ns)) for ns in ends]
    draw = np.random.default_rng(0)
    same = 0.0
    for k in range(DRAWS):
        one = cases[k % len(cases)]
        whole = {n: getattr(one, n) + draw.normal(0, ERROR) * bool(getattr(one, n)) for n in (*RESOURCES, "device")}
        parts = {n: (getattr(one, n) or 0.0) * (1 + draw.normal(0, CEILING_ERROR)) for n in PARTS}
        if one.compute is None:
            parts = dict.fromkeys(PARTS)
        drawn = bound_of(dataclasses.replace(one, **whole, **parts))
        # A draw that cannot tell two apart is half for each.
        same += 1.0 if drawn == bound else 0.5 if drawn == "balanced" else 0.0
    return same / DRAWS
