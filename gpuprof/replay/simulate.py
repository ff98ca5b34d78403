"""Runs a graph: one pass over its nodes, each as early as its edges allow."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from gpuprof.replay.graph import NEVER, Graph, gpu_nodes
from gpuprof.tracefile.compiled import compiled
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import F64
from gpuprof.units import Assumed, Nodes, Rounds

ROUNDS: Assumed[Rounds] = 3
"""Rounds of the loop after which a step is read off: the second fills the queues, the third repeats."""

FEWEST_IN_THREAD: Assumed[Nodes] = 100_000
"""Fewest nodes of a graph that is simulated in another thread, while the next one is made."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When every node of a graph starts and ends in the last simulated round, ns from the window's start."""

    graph: Graph
    start_ns: F64
    end_ns: F64
    finished_ns: F64
    """[rounds, steps]: when each step's host span has ended and all GPU work launched up to then is done."""
    working_steps: int
    """Steps that launch work."""

    @property
    def step_ns(self) -> float:
        """A step in the loop: the time from one step's finish to the next one's over the last round, the median; their
        mean where no step is usual."""
        return float(np.median(self.each_ns) if self.has_usual_step else np.mean(self.each_ns))

    @property
    def has_usual_step(self) -> bool:
        """Whether at least half of the steps launch work, and take time. A step that launches nothing finishes with the
        one before it if the CPU runs ahead."""
        return 2 * self.working_steps >= self.graph.steps and float(np.median(self.each_ns)) > 0

    @property
    def each_ns(self) -> F64:
        """Every step of the last round, from the finish of the one before."""
        last = self.finished_ns[-1]
        before = self.finished_ns[-2, -1] if len(self.finished_ns) > 1 else 0.0
        return np.diff(last, prepend=before)

    @property
    def step_end_ns(self) -> F64:
        """Host end of each step in the last round."""
        return self.end_ns[self.graph.step_end] if len(self.graph) else np.empty(0)


def simulate(graph: Graph, rounds: int = 1, times: bool = True) -> Schedule:
    """Runs the window `rounds` times in a row; the first begins in the state in which the recording began. times:
    whether the starts and ends of nodes are returned; otherwise both are empty.
    """
    edges = graph.edges
    gpu, step = gpu_nodes(graph)
    end = graph.before_ns.copy() if times else _scratch(graph.before_ns)
    start = end.copy() if times or edges.from_start.any() else np.empty(0)
    done = np.full((rounds, graph.steps), NEVER)
    _run(
        graph.duration_ns, edges.plain, edges.first, edges.source, edges.lag_ns, edges.from_start, start, end,
        gpu, step, graph.step_end, done,
    )  # fmt: skip
    working = int(np.count_nonzero(np.bincount(step, minlength=graph.steps)))
    if not times:
        start = end = np.empty(0)
    return Schedule(graph, start, end, done, working)


_room = threading.local()


def _scratch(values: F64) -> F64:
    """A copy that the next call overwrites: fresh memory costs more than what is written to it."""
    if len(getattr(_room, "values", ())) != len(values):
        _room.values = np.empty_like(values)
    np.copyto(_room.values, values)
    return _room.values


@remembered
def in_loop(graph: Graph) -> Schedule:
    """The schedule of the graph repeated in a loop."""
    return simulate(graph, ROUNDS)


@remembered
def step_of(graph: Graph) -> float:
    """How long a step of the loop takes, ns."""
    return simulate(graph, ROUNDS, times=False).step_ns


@compiled
def _run(
    duration, plain, first, source, lag, from_start, start, end, gpu, step, step_end, done
):  # pragma: no cover - compiled
    """Round after round. Plain nodes read nothing but their duration, and starts are written where they are wanted: a
    round of 526,000 nodes takes 1.0 ms instead of 2.3."""
    keep = len(start) > 0
    for r in range(len(done)):
        before = NEVER
        for node in range(len(duration)):
            begin = before
            if not plain[node]:
                begin = NEVER
                for e in range(first[node], first[node + 1]):
                    at = (start[source[e]] if from_start[e] else end[source[e]]) + lag[e]
                    begin = max(begin, at)
            if keep:
                start[node] = begin
            before = begin + duration[node]
            end[node] = before
        for k in range(len(gpu)):  # when the last GPU work of each step is done
            done[r, step[k]] = max(done[r, step[k]], end[gpu[k]])
        whole = NEVER
        for s in range(len(step_end)):
            whole = max(whole, done[r, s], end[step_end[s]])
            done[r, s] = whole
