"""The verdict on replayed steps: what limits them (`replay.bound`), its cause, and the confidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from gpuprof.calibration import noise as calibrated
from gpuprof.diagnosis.idle.gaps import CAUSES
from gpuprof.diagnosis.result.diagnosis import UNCLEAR_CONFIDENCE, Family, Verdict
from gpuprof.diagnosis.sentences import Sentences
from gpuprof.diagnosis.verdict.doubts import Doubt, remaining
from gpuprof.diagnosis.verdict.estimate import host_causes
from gpuprof.replay.bound import (
    EQUAL_SENSITIVITY,
    LEAST_SENSITIVITY,
    PARTS,
    RESOURCES,
    Bound,
    Resource,
    bound_of,
    capped,
    resource_of,
)
from gpuprof.replay.graph import SYNC, Graph
from gpuprof.replay.mean_step import HOST_LUMPS, MeanStep
from gpuprof.replay.sensitivity import Sensitivities, gain_without, sensitivities
from gpuprof.replay.several_steps import simulate_steps
from gpuprof.replay.simulate import step_of
from gpuprof.replay.split_collectives import communication_cause
from gpuprof.replay.transform import scale, scaled, without_edges
from gpuprof.replay.unprofiled.profiler_fit import Removal
from gpuprof.timeline.cpu.slow_calls import KINDS, UNKNOWN, slow_calls
from gpuprof.timeline.unit import STEP, Unit
from gpuprof.tracefile.trace import F64
from gpuprof.units import Assumed, Draws

DRAWS: Assumed[Draws] = 40

_CLOSE = "what would gain most differs within the noise of what was measured"
"""Why the verdict is unclear if the recording lacks nothing."""

NEEDED = ("launch", "python", "unknown", "slow_call")
"""Parts of CPU time that every training has, and those of unknown cause (slow calls are `slow_call` only if their kind
is unknown)."""

FAMILIES: dict[str, Family] = {
    "compute": "compute", "memory": "memory", "host": "host", "input": "host", "transfer": "host",
}  # fmt: skip


def family_of(bound: str | None) -> Family | None:
    """The family of a verdict; None without one."""
    return None if bound is None else FAMILIES.get(bound, "other")


def bound_and_cause(
    graph: Graph, found: Sensitivities, mean: MeanStep | None = None
) -> tuple[Bound | None, str | None]:
    """What limits the mean step of a graph, with the cause if that is the CPU or communication."""
    mean = mean or MeanStep(graph)
    bound = bound_of(found, gain_without(graph, mean))
    if bound == "host":
        return bound, _lump(graph, mean) or host_cause(graph)
    return bound, communication_cause(graph) if bound == "communication" else None


def host_cause(graph: Graph) -> str | None:
    """Which part of the CPU's time limits the step: launches, Python, allocations, or waiting for the device.

    Waits of synchronising calls count with the gain of the step without them, including refilling the queue; waits of
    calls that free memory (cudaFree waits for the device) count for the allocator. As for the verdict, a cause counts
    with twice the gain of halving its time, at most the gain of removing it. If gains cannot be distinguished, a cause
    that a training can do without comes before launches and Python. None if most is unrecorded time.
    """
    step = step_of(graph)
    cause = host_causes(graph)
    waits = graph.edges.kind == SYNC
    of_allocator = waits & (cause == CAUSES.index("allocator"))[graph.edges.target]
    changed = {}
    for name in ("launch", "python", "allocator", "cpu_compute", "slow_call", "unknown"):
        nodes = (cause == CAUSES.index(name)) & (graph.lane >= 0)
        if nodes.any():
            free = without_edges(graph, of_allocator) if name == "allocator" and of_allocator.any() else graph
            changed[name] = free, scaled(free, nodes, 0.5), scaled(free, nodes, 0.0)
    simulate_steps([one for several in changed.values() for one in several])
    gains = {}
    for name, several in changed.items():
        waited, half, none = map(step_of, several)
        gains[name] = step - waited + min(2 * (waited - half), waited - none)
    waits &= ~of_allocator
    if waits.any():
        gains["sync"] = step - step_of(without_edges(graph, waits))
    if not gains:
        return "launch"
    by_gain = sorted(gains, key=lambda name: -gains[name])
    close = [name for name in by_gain if gains[by_gain[0]] - gains[name] < EQUAL_SENSITIVITY * step]
    named = {name: slow_kind(graph) if name == "slow_call" else name for name in close}
    largest = next((cause for cause in named.values() if cause not in NEEDED), named[by_gain[0]])
    return None if largest == "unknown" else largest


def slow_kind(graph: Graph) -> str:
    """What the slow calls of a graph spend most of their time on: planning, loading, compile, allocator, locking, or
    slow_call if unknown."""
    found = slow_calls(graph.timeline)
    ns = np.bincount(found.kind, weights=found.own_ns, minlength=len(KINDS))
    return "slow_call" if not ns.any() or int(ns.argmax()) == UNKNOWN else KINDS[int(ns.argmax())]


def judge(
    removal: Removal,
    found: Sensitivities,
    parts_ns: dict[str, F64] | None,
    said: Sentences,
    mean: MeanStep | None = None,
    ends: tuple[float, float] | None = None,
) -> Verdict:
    """The verdict on the mean step with its cause and how sure it is.

    `said`: sentences about the step; `ends`: of the 80 % interval of the mean step, ns.
    """
    graph = removal.graph
    bound, cause = bound_and_cause(graph, found, mean)
    if bound is None:
        said = (*said, "What limits its work was not recorded.")
        return Verdict(bound=None, family=None, cause=None, confidence=None, sentences=said)
    return Verdict(
        bound=bound,
        family=family_of(bound),
        cause=cause,
        confidence=confidence(removal, found, bound, parts_ns, mean, ends),
        sentences=said,
    )


def with_doubts(
    verdict: Verdict,
    found: Sensitivities,
    doubted: Sequence[Doubt],
    timed: bool = False,
    exposed: float = 0.0,
    unit: Unit = STEP,
) -> Verdict:
    """The verdict with the confidence that the doubts leave; below UNCLEAR with its runner-up, if any, and
    what would decide.

    `timed`: whether steps were timed without a profiler; `exposed`: share of the step in communication that nothing
    overlaps.
    """
    sure = (verdict.confidence or 0.0) * remaining(doubted)
    texts = tuple(one.text for one in doubted)
    if sure >= UNCLEAR_CONFIDENCE:
        return dataclasses.replace(verdict, confidence=sure, doubts=texts)
    texts = texts or (_CLOSE if timed else f"{_CLOSE}: time {unit}s without a profiler, as gpuprof trace does",)
    return dataclasses.replace(
        verdict,
        confidence=sure,
        sentences=(*verdict.sentences, f"What leaves it unclear: {'; '.join(texts)}."),
        second=runner_up(found, verdict.bound, exposed),
        doubts=texts,
    )


def runner_up(found: Sensitivities, bound: Bound | None, exposed: float = 0.0) -> Bound | None:
    """What limits the step if `bound` does not: the next resource by its gain, the device by its largest part. If none
    would gain much, communication, if enough of the step is communication alone. None where no other would gain
    anything that can be distinguished from nothing: what the step hardly uses does not limit it."""
    values: dict[Bound, float] = {name: getattr(found, name) for name in RESOURCES if name != "device"}
    parts: dict[Bound, float] = {name: getattr(found, name) or 0.0 for name in PARTS}
    values |= parts if found.compute is not None else {"memory": found.device}
    values.pop(bound, None)  # type: ignore[arg-type]
    if (
        exposed >= LEAST_SENSITIVITY
        and max(values.values(), default=0.0) < LEAST_SENSITIVITY
        and bound != "communication"
    ):
        return "communication"
    second = max(values, key=lambda name: (values[name], name in PARTS), default=None)
    return second if second is not None and values[second] >= EQUAL_SENSITIVITY else None


def limit_of_usual_step(graph: Graph, bound: Bound | None, mean: MeanStep) -> Resource | None:
    """The resource that limits the usual step; None where that is `bound`, where several do, or where no known cause
    makes some steps longer."""
    if bound is None or not mean.has_excess:
        return None
    usual = mean.usual(graph)
    found = resource_of(sensitivities(usual.graph, mean=usual), gain_without(usual.graph, usual))
    same = found == bound or (found == "device" and bound in PARTS)
    return None if same else found


def _lump(graph: Graph, mean: MeanStep) -> str | None:
    """The largest event of some steps only, if it costs more than the CPU does in the usual step."""
    lumps = {cause: ns for cause, ns in mean.lumps_ns.items() if cause in HOST_LUMPS}
    largest = max(lumps, key=lambda cause: lumps[cause], default=None)
    if largest is None:
        return None
    half, none = (mean.of(graph) - mean.of(scale(graph, host=factor)) for factor in (0.5, 0.0))
    largest_ns, name = lumps[largest], {"new_shapes": "planning"}.get(largest, largest)
    return name if largest_ns > min(2 * half, none) else None


def confidence(
    removal: Removal,
    found: Sensitivities,
    bound: Bound,
    parts_ns: dict[str, F64] | None,
    mean: MeanStep | None = None,
    ends: tuple[float, float] | None = None,
) -> float:
    """The share of draws in which the verdict stays.

    A draw takes the CPU's time as it is or at either end of its range, likewise the mean step if some steps are longer
    than the usual one, and adds noise to every sensitivity; none exceeds the gain of removing the resource.
    """
    now = capped(found, gain_without(removal.graph, mean))
    others = [(graph, mean) for graph in (removal.quicker, removal.slower)]
    if mean is not None and ends is not None and mean.has_excess:
        others += [(removal.graph, mean.with_mean(ns)) for ns in ends]
    cases = [capped(sensitivities(graph, parts_ns, of), gain_without(graph, of)) for graph, of in others]
    return stays([now, now, *cases], bound)


def stays(cases: Sequence[Sensitivities], bound: Bound, unknown: float = 0.0) -> float:
    """The share of draws in which `bound` stays, with noise on the sensitivities of each case in turn.

    unknown: as `bound_of` takes it.
    """
    draw = np.random.default_rng(0)
    same = 0.0
    for k in range(DRAWS):
        one = cases[k % len(cases)]
        whole = {
            n: getattr(one, n) + draw.normal(0, calibrated.SENSITIVITY.value) * bool(getattr(one, n)) for n in RESOURCES
        }
        parts = {n: (getattr(one, n) or 0.0) * (1 + draw.normal(0, calibrated.CEILING.value)) for n in PARTS}
        if one.compute is None:
            parts = dict.fromkeys(PARTS)
        drawn = bound_of(dataclasses.replace(one, **whole, **parts), unknown=unknown)
        # A draw that is undecided between two counts half for each.
        same += 1.0 if drawn == bound else 0.5 if drawn == "balanced" else 0.0
    return same / DRAWS
