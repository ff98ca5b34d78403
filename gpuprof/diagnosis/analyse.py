"""The replayed part of a diagnosis: the graph of the steps, the profiler's cost taken out, what binds, and the
fixes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.costs.roofline import Roofline
from gpuprof.costs.split import COMPUTE, LATENCY, MEMORY, NO_BOUND
from gpuprof.diagnosis.kernels import category_bound
from gpuprof.diagnosis.model import Replay
from gpuprof.replay.build import build
from gpuprof.replay.carried import carried_over
from gpuprof.replay.collectives import model_collectives
from gpuprof.replay.graph import F64, Graph
from gpuprof.replay.overhead import ROUNDS, Removal, remove_profiler
from gpuprof.replay.sensitivity import Sensitivities, sensitivities
from gpuprof.replay.simulate import simulate
from gpuprof.replay.transform import scale
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.timeline import Timeline

WORST_ERROR = 0.05
"""A graph that misses the recorded steps by more than this predicts nothing."""
UNLAUNCHED = 0.25
"""With more of the GPU's time than this in work whose launch was not recorded, nothing about the host can be
replayed."""

UNEXPLAINED = 0.25
"""The same for time that no work accounts for. Recordings of known programs have 0 to 0.03; above this lie only those
that miss most of what their GPUs waited for (0.67 and 0.83)."""

_CODES: dict[str | None, int] = {"compute": COMPUTE, "memory": MEMORY, "latency": LATENCY}


@dataclass(frozen=True, slots=True)
class Analysis:
    """One recording replayed."""

    replay: Replay
    removal: Removal
    sensitivities: Sensitivities


def analyse(
    timeline: Timeline, roofline: Roofline | None, measured_ns: float | None, spread: tuple[float, float] | None
) -> tuple[Replay, Analysis | None]:
    """Replays the window; no analysis where that fails, and why it did.

    `measured_ns`, `spread`: an unprofiled step and its 80 % interval, where it was timed.
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
        text = f"{100 * unknown:.0f} % of the step passes in waits that the recording does not explain"
        return Replay(error, False, text), None
    removal = remove_profiler(graph, measured_ns, spread)
    found = sensitivities(removal.graph, bound_parts(timeline, roofline) if roofline else None)
    replay = Replay(error, True, steps=graph.steps)
    return replay, Analysis(replay, removal, found)


def replay_error(graph: Graph) -> float:
    """How far the untouched graph's steps end from where they ended, at most, as a share of the window."""
    low, _ = graph.timeline.window
    recorded = (graph.timeline.steps.end_ns - low).astype(np.float64)
    found = simulate(graph).step_end_ns
    return float(np.abs(found - recorded).max() / recorded[-1])


def _explained(graph: Graph) -> float:
    """The part of a step that its work accounts for: with all work twice as fast a step of nothing else is halved."""
    step = simulate(graph, ROUNDS).step_ns
    faster = scale(graph, host=0.5, input=0.5, transfer=0.5, communication=0.5, device=0.5)
    return 2 * (1 - simulate(faster, ROUNDS).step_ns / step) if step > 0 else 0.0


def _unlaunched_share(timeline: Timeline) -> float:
    gpu, rows = timeline.trace.gpu, timeline.members
    ns = (gpu.end_ns - gpu.start_ns)[rows].clip(0)
    total = float(ns.sum())
    return float(ns[timeline.links.call[rows] < 0].sum()) / total if total else 0.0


def bound_parts(timeline: Timeline, roofline: Roofline) -> dict[str, F64]:
    """Per GPU event its whole time under what limits it; of work that is not known under what usually limits its
    like."""
    split = roofline.split
    whole = np.sum(split.parts, axis=0).astype(np.float64)
    usual = np.array([_CODES.get(category_bound(name), NO_BOUND) for name in CATEGORIES], np.uint8)
    bound = np.where(split.bound == NO_BOUND, usual[timeline.category], split.bound)
    return {name: np.where(bound == code, whole, 0.0) for name, code in _CODES.items() if name}
