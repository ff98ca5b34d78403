"""The graph as it would have run unprofiled: the usual cost of recording removed, or the cost and the CPU's own speed
fitted to a measured step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from gpuprof.calibration import noise as noise_calibrated
from gpuprof.calibration import profiler as profiler_calibrated
from gpuprof.replay.cpu_compute import computes, good_part
from gpuprof.replay.graph import HOST, INPUT, Graph
from gpuprof.replay.simulate import step_of
from gpuprof.replay.transform import scale as by_resource
from gpuprof.replay.transform import scaled
from gpuprof.replay.unprofiled.host_pace import pace_and_spread
from gpuprof.replay.unprofiled.phase_fit import QUICKER_HOST, Parts, fitted_to_parts
from gpuprof.replay.unprofiled.planning import planning
from gpuprof.replay.unprofiled.profiler_cost import EventCounts, recorded_events, without
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Convention, Entries, Ratio, Share

MOST_EXPONENT: Assumed[Ratio] = 1.6
"""Largest factor by which the CPU itself was faster or slower, beyond the cost of recording, as an exponent of e."""
FLAT_GAIN: Assumed[Share] = 5e-3
"""If removing more cost gains less than this share, the step does not wait for that cost."""
CPU_LIMITED: Assumed[Share] = 0.01
"""If a CPU that takes QUICKER_HOST of the time shortens the step by less than this, the GPU limits the step, which then
says nothing more about the CPU."""
GPU_LIMITED: Assumed[Share] = 0.8
"""A step of which this much is left without the CPU's work is limited by the GPU, or nearly so."""
FIT_TOLERANCE: Assumed[Share] = 1e-3
"""A fit is good if the step differs from the measured one by at most this share."""
SEARCH_TOLERANCE: Assumed[Share] = 1e-4
"""Relative tolerance of the search for the cost of an event and the speed of a CPU."""
FACTOR_BOUNDS: Assumed[tuple[Ratio, Ratio]] = (0.2, 5.0)
"""Between these, the factor is searched by which a part of a step is scaled."""
MOST_GRAPHS_KEPT: Convention[Entries] = 8
"""Graphs that a search keeps: it looks at the last ones again."""
UNFITTED_DIFFERENCE: Assumed[Share] = 0.01
"""A step that is only estimated is not fitted if it differs by at most this share already."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The graph without the profiler's cost, and the facts about that cost."""

    graph: Graph
    step_ns: float
    low_ns: float
    high_ns: float
    """Ends of the step's 80 % interval, ns."""
    fitted: bool
    """Whether the cost was fitted to a measured step."""
    cost_ns: float
    """Removed from the host's work per step."""
    scale: float
    """Cost of an event / the usual cost."""
    quicker: Graph
    slower: Graph
    """The graph at the ends of the 80 % interval of the CPU's own time."""
    replayed_ns: float
    """The step of the same loop with all that recording cost. A window may be longer: what passes in it before its
    first kernel runs in a loop while the GPU still works for the step before."""


def remove_profiler(
    graph: Graph, measured_ns: float | None = None, spread: tuple[float, float] | None = None,
    shares: Parts | None = None, cpu_ns: float | None = None,
) -> Removal:  # fmt: skip
    """The graph as it would have run unprofiled.

    `measured_ns`: a step timed without a profiler, to which the CPU's time is fitted as far as the step waits for the
    CPU, and `spread` its 80 % interval; `shares`: the parts of such a step, if they were timed; `cpu_ns`: an upper
    bound of the CPU's own time for such a step, if known. Without a measured step the usual cost per event is removed,
    and the interval is that of the cost.
    """
    events = recorded_events(graph)
    pace, spread_of_cost = pace_and_spread(graph.timeline)
    per_step = float(events.cost_ns(1.0).sum()) / graph.steps
    replayed = step_of(graph)
    usual, slower, quicker = (
        without(graph, events.cost_ns(scale)) for scale in (pace, pace / spread_of_cost, pace * spread_of_cost)
    )
    if measured_ns is None:
        step, slow, fast = (step_of(one) for one in (usual, slower, quicker))
        low, high = _wider(step, min(fast, step), -1), _wider(step, max(slow, step), 1)
        return Removal(usual, step, low, high, False, pace * per_step, pace, quicker, slower, replayed)
    scale, reduced = _fitted(graph, events, pace, pace / spread_of_cost, measured_ns)
    if shares is not None:
        reduced = fitted_to_parts(reduced, shares)
    quick = reduced if cpu_ns is None else no_slower_cpu(reduced, cpu_ns)
    fitting = reduced.duration_ns > 0 if quick is reduced else reduced.on_gpu
    reduced, step = quick, step_of(quick)
    if abs(step - measured_ns) > FIT_TOLERANCE * measured_ns:
        # Another clock, or something that the graph does not contain.
        reduced = _by_one_factor(reduced, fitting, measured_ns)
        step = step_of(reduced)
    low, high = spread or (measured_ns, measured_ns)
    quicker, slower = (_at_speed(reduced, _host_ns(one) / max(_host_ns(usual), 1.0), step) for one in (quicker, slower))
    cost = scale * per_step
    return Removal(reduced, step, min(low, step), max(high, step), True, cost, scale, quicker, slower, replayed)


def no_slower_cpu(graph: Graph, cpu_ns: float) -> Graph:
    """The graph with a CPU that takes no longer than `cpu_ns` for a step that waits for nothing; itself where it does
    not.

    Recording delays the CPU by bursts, and a step that the GPU limits does not show how much: what is left of them once
    the usual cost is taken out would seem to limit a step that the GPU does in less time. Where the CPU limits the
    step, it is quicker in some steps than in others, and the quickest says little.
    """
    if step_of(by_resource(graph, host=0.0, input=0.0)) < GPU_LIMITED * step_of(graph):
        return graph
    alone = step_of(by_resource(graph, device=0.0, communication=0.0, input=0.0))
    return by_resource(graph, host=cpu_ns / alone) if alone > cpu_ns > 0 else graph


def at_step(graph: Graph, removal: Removal, step_ns: float) -> Removal:
    """A removal without a measured step, fitted to a step known from other recordings: the CPU's time is fitted to
    `step_ns`, and the relative widths of its interval and the step's are unchanged."""
    if abs(step_ns - removal.step_ns) <= UNFITTED_DIFFERENCE * step_ns or removal.step_ns <= 0:
        return removal
    found = remove_profiler(graph, step_ns)

    def by(end: Graph) -> Graph:
        factor = _host_ns(end) / max(_host_ns(removal.graph), 1.0)
        return by_resource(found.graph, host=factor, input=factor)

    return replace(
        found, low_ns=found.step_ns * removal.low_ns / removal.step_ns,
        high_ns=found.step_ns * removal.high_ns / removal.step_ns, fitted=False,
        quicker=by(removal.quicker), slower=by(removal.slower),
    )  # fmt: skip


def _fitted(graph: Graph, events: EventCounts, pace: float, least: float, measured_ns: float) -> tuple[float, Graph]:
    """The cost of an event and the graph that comes nearest to the measured step with the likeliest host.

    If the GPU limits the step, the step only says that the CPU is not slower than that. Fitting the CPU to the small
    difference that is left would fit it to the GPU's noise. So the CPU keeps its usual speed unless the GPU's noise
    does not explain the measured step, and then departs from it only as far as needed: first by the cost of an event,
    then by its own speed. If even all of the cost hardly changes the step, an event costs at least `least`: the CPU
    does not explain the rest of the difference.
    """
    most = profiler_calibrated.SPREAD.value * pace
    differs = _differs(graph)

    @lru_cache(maxsize=2)
    def without_cost(scale: float) -> Graph:
        return without(graph, events.cost_ns(scale))

    @lru_cache(maxsize=MOST_GRAPHS_KEPT)
    def with_most(most: float, level: float, device: float) -> Graph:
        if differs is not None and level < pace:
            reduced = scaled(without_cost(pace), differs, float(np.exp(pace - level)))
            return by_resource(reduced, device=device)
        scale = min(max(level, 0.0), most)
        reduced = without_cost(scale)
        return by_resource(
            reduced, host=float(np.exp(scale - level)), input=float(np.exp(scale - level)), device=device
        )

    def at(level: float, device: float) -> Graph:
        return with_most(most, level, device)

    def step(level: float, device: float) -> float:
        return step_of(at(level, device))

    def determined(level: float, device: float) -> bool:
        graph = at(level, device)
        quicker = by_resource(graph, host=QUICKER_HOST, input=QUICKER_HOST)
        return step_of(quicker) < (1 - CPU_LIMITED) * step_of(graph)

    level, device, slow, fast = pace, 1.0, 1 + noise_calibrated.RUN.value, 1 / (1 + noise_calibrated.RUN.value)
    if step(pace, slow) < measured_ns:
        insensitive = step(0.0, slow) < (1 + 2 * noise_calibrated.RUN.value) * step(pace, slow)
        device, lowest = slow, least if insensitive else -MOST_EXPONENT
        if step(0.0, slow) >= measured_ns or determined(0.0, slow):
            level = _first(lambda u: step(u, slow) <= measured_ns, lowest, pace)
    elif step(pace, fast) > measured_ns:
        # If removing more does not help, the cost is not the reason.
        least = step(most, fast) * (1 + FLAT_GAIN)
        most = _first(lambda u: step(u, fast) <= least, pace, most)
        level = _first(lambda u: step(u, fast) <= measured_ns or not determined(u, fast), pace, most + MOST_EXPONENT)
        device = fast
    else:
        device = 1 / _first(lambda quicker: step(pace, 1 / quicker) <= measured_ns, fast, slow)
    if abs(step(level, 1.0) - measured_ns) <= FIT_TOLERANCE * measured_ns:
        device = 1.0
    return pace if differs is not None and level < pace else min(max(level, 0.0), most), at(level, device)


def _differs(graph: Graph) -> Mask | None:
    """Ops that compute on the CPU or plan kernels, where they are a good part of its work. None where they are not.

    If the measured step is longer than the recorded one without the cost of recording, they were slower: plans for the
    shapes that were timed take longer than those for the recorded ones, while launches take the same.
    """
    return good_part(graph, computes(graph) | planning(graph).nodes)


def _at_speed(graph: Graph, factor: float, step_ns: float) -> Graph:
    """The graph with a CPU that is slower or faster by a factor, as far as the measured step allows; at least by the
    noise of the CPU's time."""
    noise = float(np.log1p(noise_calibrated.HOST_PROCESS.value))
    whole = max(abs(float(np.log(factor))), noise)

    def by(size: float) -> Graph:
        changed = float(np.exp(size if factor > 1 else -size))
        return by_resource(graph, host=changed, input=changed)

    def too_far(size: float) -> bool:
        return abs(step_of(by(size)) - step_ns) > noise_calibrated.RUN.value * step_ns

    return by(_first(too_far, noise, whole))


def _host_ns(graph: Graph) -> float:
    return float(graph.duration_ns[np.isin(graph.resource, (HOST, INPUT))].sum())


def _wider(step: float, bound: float, side: int) -> float:
    """The bound of an interval on one side of the step, moved away from it by the noise between processes."""
    if step <= 0 or bound <= 0:
        return step
    return float(step * np.exp(side * np.hypot(np.log(bound / step), np.log1p(noise_calibrated.GPU_PROCESS.value))))


def _first(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Smallest value for which a monotone predicate holds; `high` if it never does."""
    if holds(low):
        return low
    for _ in range(16):
        if high - low <= SEARCH_TOLERANCE:
            break
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _by_one_factor(graph: Graph, nodes: Mask, target: float) -> Graph:
    """The graph with these nodes scaled by one factor, so that its step is nearest to the target."""

    def by(factor: float) -> Graph:
        return graph.with_durations(np.where(nodes, graph.duration_ns * factor, graph.duration_ns))

    low, high = FACTOR_BOUNDS
    for _ in range(24):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if step_of(by(middle)) > target else (middle, high)
    return by((low * high) ** 0.5)
