"""Runs a graph: one pass over its nodes, each as early as its edges allow."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from gpuprof.replay.graph import NEVER, Graph
from gpuprof.tracefile.trace import F64, I64

ROUNDS = 3
"""Rounds of the loop after which a step is read off: the second fills the queues, the third repeats."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When every node of a graph starts and ends in the last simulated round, ns from the window's start."""

    graph: Graph
    start_ns: F64
    end_ns: F64
    finished_ns: F64
    """[rounds, steps]: when each step's host span has ended and all GPU work launched up to then is done."""
    step_end_ns: F64
    """Host end of each step in the last round."""

    @property
    def step_ns(self) -> float:
        """A step in the loop: the time from one step's finish to the next one's over the last round, the median; their
        mean where no step is usual."""
        return float(np.median(self.each_ns) if self.has_usual_step else np.mean(self.each_ns))

    @property
    def has_usual_step(self) -> bool:
        """Whether at least half of the steps launch work, and take time. A step that launches nothing finishes with the
        one before it where the host runs ahead."""
        graph = self.graph
        launched = np.bincount(graph.step[graph.on_gpu], minlength=graph.steps)
        return 2 * np.count_nonzero(launched) >= graph.steps and float(np.median(self.each_ns)) > 0

    @property
    def each_ns(self) -> F64:
        """Every step of the last round, from the finish of the one before."""
        last = self.finished_ns[-1]
        before = self.finished_ns[-2, -1] if len(self.finished_ns) > 1 else 0.0
        return np.diff(last, prepend=before)


def simulate(graph: Graph, rounds: int = 1) -> Schedule:
    """Runs the window `rounds` times in a row; the first begins with what the recording was begun with."""
    edges = graph.edges
    n = len(graph)
    start, end = graph.before_ns.copy(), graph.before_ns.copy()
    finished = np.empty((rounds, graph.steps))
    gpu = np.flatnonzero(graph.on_gpu)
    step = graph.step[gpu]
    for r in range(rounds):
        _run(graph.duration_ns, edges.first, edges.source, edges.lag_ns, edges.from_start, start, end)
        finished[r] = _finished(graph, end, gpu, step)
    return Schedule(graph, start, end, finished, end[graph.step_end] if n else np.empty(0))


def _finished(graph: Graph, end: F64, gpu: I64, step: I64) -> F64:
    """When each step is done; `gpu`: the nodes of GPU work, `step`: theirs."""
    done = np.full(graph.steps, NEVER)
    np.maximum.at(done, step, end[gpu])
    return np.maximum.accumulate(np.maximum(done, end[graph.step_end]))


@numba.njit(cache=True)
def _run(duration, first, source, lag, from_start, start, end):  # pragma: no cover - compiled
    for node in range(len(duration)):
        begin = -1e18
        for e in range(first[node], first[node + 1]):
            at = (start[source[e]] if from_start[e] else end[source[e]]) + lag[e]
            begin = max(begin, at)
        start[node] = begin
        end[node] = begin + duration[node]
