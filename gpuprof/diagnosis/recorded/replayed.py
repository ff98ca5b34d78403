"""The steps of a recording as a graph without the profiler's cost, or why they cannot be replayed."""

from __future__ import annotations

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.diagnosis.result.diagnosis import Replay
from gpuprof.replay.build.carried_in import carried_over
from gpuprof.replay.graph import Graph
from gpuprof.replay.simulate import simulate, step_of
from gpuprof.replay.split_collectives import model_collectives
from gpuprof.replay.transform import scale
from gpuprof.replay.unprofiled.phase_fit import Parts
from gpuprof.replay.unprofiled.planning import without_planning
from gpuprof.replay.unprofiled.profiler_fit import Removal, at_step, remove_profiler
from gpuprof.units import Assumed, Share

WORST_ERROR: Assumed[Share] = 0.05
"""If the replay misses the recorded steps by more than this share, nothing is predicted."""
MOST_UNLAUNCHED: Assumed[Share] = 0.25
"""If more than this share of GPU time is in work whose launch was not recorded, the CPU's side cannot be replayed."""


def replayed(
    recorded: Graph,
    measured_ns: float | None,
    spread: tuple[float, float] | None,
    of_all_ns: float | None = None,
    plans_apart: bool = False,
    shares: Parts | None = None,
    cpu_ns: float | None = None,
) -> tuple[Replay, Removal | None]:
    """Recorded steps as a graph without the profiler's cost; None if they cannot be replayed, with the reason.

    `measured_ns`, `spread`: an unprofiled step and its 80 % interval, if timed; `of_all_ns`: the step of all ranks
    replayed together, used as this rank's step if none was timed; `plans_apart`: the unprofiled step has no new shapes,
    so planning for them is removed from the recorded steps; `shares`: the parts of an unprofiled step; `cpu_ns`: the
    longest that such a step takes the CPU alone.
    """
    if not len(recorded) or not recorded.on_gpu.any():
        return Replay(None, False, "no GPU work to replay"), None
    graph, timeline = model_collectives(carried_over(recorded)), recorded.timeline
    error = replay_error(graph)
    if not error <= WORST_ERROR:
        text = f"the replay misses the recorded {timeline.unit}s by {100 * error:.0f} %"
        return Replay(error, False, text), None
    lost = _unlaunched_share(graph)
    if lost > MOST_UNLAUNCHED:
        text = f"{100 * lost:.0f} % of the GPU's time is in work whose launch was not recorded"
        return Replay(error, False, text), None
    unknown = 1 - _explained(graph)
    if unknown > calibrated.UNEXPLAINED.value:
        idle = min(device.idle_ns for device in timeline.devices) / (timeline.window[1] - timeline.window[0])
        text = f"what {100 * unknown:.0f} % of the {timeline.unit} waits for was not recorded"
        if unknown > idle:
            text += "; other work keeps the GPU busy during part of it"
        return Replay(error, False, text), None
    if plans_apart:
        graph = without_planning(graph)
    removal = remove_profiler(graph, measured_ns, spread, shares, cpu_ns)
    if measured_ns is None and of_all_ns:
        removal = at_step(graph, removal, of_all_ns)
    return Replay(error, True, steps=graph.steps), removal


def replay_error(graph: Graph) -> float:
    """Largest error of a step's end in the unchanged graph's replay, as a share of the window."""
    low, _ = graph.timeline.window
    recorded = (graph.timeline.steps.end_ns - low).astype(np.float64)
    found = simulate(graph).step_end_ns
    return float(np.abs(found - recorded).max() / recorded[-1])


def _explained(graph: Graph) -> float:
    """The share of a step that its work explains: if all of it is work, the step halves when all work is twice as
    fast."""
    step = step_of(graph)
    faster = scale(graph, host=0.5, input=0.5, transfer=0.5, communication=0.5, device=0.5)
    return 2 * (1 - step_of(faster) / step) if step > 0 else 0.0


def _unlaunched_share(graph: Graph) -> float:
    """Share of GPU time in work whose launch was not recorded, without work that earlier steps had queued, which
    `carried_over` removes."""
    ns = np.where(graph.on_gpu, graph.duration_ns, 0.0)
    total = float(ns.sum())
    return float(ns[graph.call < 0].sum()) / total if total else 0.0
