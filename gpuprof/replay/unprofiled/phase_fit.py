"""Fits the CPU's time before, in and after the backward passes to their shares in a stretch without a profiler.

The cost of a recorded event is not the same in all of a step: in four programs that the CPU limits (scenarios/cases),
sampled without a profiler, the work before the backward pass took 1.05 to 1.6 times, and the backward pass 0.84 to 1.08
times, the time that remains with one cost for all events.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuprof.replay.graph import HOST, Graph
from gpuprof.replay.simulate import ROUNDS, Schedule, simulate, step_of
from gpuprof.replay.transform import scale
from gpuprof.timeline.phases import BACKWARD, RECOMPUTE
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Ratio, Rounds, Share

FIT_ROUNDS: Assumed[Rounds] = 4
"""Rounds of the fit: each part's time is nearly linear in its factor, so a few are enough."""
QUICKER_HOST: Assumed[Ratio] = 0.9
"""Factor of the CPU's times in the trial that shows whether the CPU is the limit."""
MOST_FACTOR: Assumed[Ratio] = 2.0
"""Largest factor by which a part becomes slower or faster: beyond, the recorded steps do other work."""
CPU_LIMITED: Assumed[Share] = 0.05
"""A step that a CPU of 0.9 of the time shortens by less than this is not limited by the CPU alone: its parts have
waits for the GPU in them."""


class Parts(NamedTuple):
    """Parts of a step, ns, or their shares: from its begin to its last backward pass without the backward passes in
    between, all backward passes, and from there to its end."""

    before: float
    backward: float
    after: float


def fitted_to_parts(graph: Graph, shares: Parts) -> Graph:
    """The graph with the CPU's time scaled part by part until the parts have these shares of the step, which stays as
    long as it is; unchanged where the CPU is not the limit, or there is no backward pass."""
    step = step_of(graph)
    if step <= 0 or step_of(scale(graph, host=QUICKER_HOST)) > (1 - CPU_LIMITED) * step:
        return graph
    nodes, last = _nodes(graph)
    if not all(mask.any() for mask in nodes):
        return graph
    factors, fitted = np.ones(3), graph
    for _ in range(FIT_ROUNDS):
        found = _parts(simulate(fitted, ROUNDS), nodes[1], last)
        if found is None or min(found) <= 0:
            return graph
        wanted = np.array(shares) * sum(found)
        factors = np.clip(factors * wanted / np.array(found), 1 / MOST_FACTOR, MOST_FACTOR)
        by_node = np.ones(len(graph))
        for mask, factor in zip(nodes, factors.tolist(), strict=True):
            by_node[mask] = factor
        fitted = graph.with_durations(graph.duration_ns * by_node)
        fitted = scale(fitted, host=step / max(step_of(fitted), 1.0))
    return fitted


def _nodes(graph: Graph) -> tuple[tuple[Mask, Mask, Mask], I64]:
    """The CPU's own work of each part, and per step the last node of its backward passes, -1 without one."""
    host = (graph.lane >= 0) & ~graph.waits & (graph.resource == HOST)
    main = graph.lane == graph.timeline.main_thread
    backward = host & ~main & np.isin(graph.phase, (BACKWARD, RECOMPUTE))
    last = np.full(graph.steps, -1, np.int64)
    rows = np.flatnonzero(backward)
    rows = rows[np.argsort(graph.recorded_end_ns[rows], kind="stable")]
    last[graph.step[rows]] = rows
    ends = np.where(last >= 0, graph.recorded_end_ns[last], np.inf)
    after = host & main & (graph.recorded_start_ns >= ends[np.clip(graph.step, 0, None)])
    return (host & main & ~after, backward, after), last


def _parts(found: Schedule, backward: Mask, last: I64) -> Parts | None:
    """The parts of the usual simulated step, ns."""
    graph = found.graph
    own = (graph.lane == graph.timeline.main_thread) & ~graph.waits
    each = []
    for step in np.flatnonzero(last >= 0).tolist():
        mine = np.flatnonzero(backward & (graph.step == step))
        main = np.flatnonzero(own & (graph.step == step))
        if not len(main):
            continue
        begin, end = float(found.start_ns[main].min()), float(found.end_ns[graph.step_end[step]])
        within = _within(graph, found, mine, main)
        after = end - float(found.end_ns[last[step]])
        each.append((end - begin - within - after, within, after))
    return Parts(*np.median(np.array(each), axis=0).tolist()) if each else None


def _within(graph: Graph, found: Schedule, backward: I64, main: I64) -> float:
    """Time from the begin to the end of each backward pass, together: between two, the main thread works."""
    order = backward[np.argsort(graph.recorded_start_ns[backward], kind="stable")]
    between = np.searchsorted(np.sort(graph.recorded_start_ns[main]), graph.recorded_start_ns[order])
    first = np.append(0, np.flatnonzero(np.diff(between)) + 1)
    begins: F64 = found.start_ns[order[first]]
    ends: F64 = np.maximum.reduceat(found.end_ns[order], first)
    return float((ends - begins).sum())
