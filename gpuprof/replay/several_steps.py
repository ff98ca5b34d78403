"""The steps of several changed graphs, simulated together.

Most of what a node takes to simulate is waiting for the node before it. Four graphs with the same edges, which differ
in durations and lags only, take 1.7 times as long as one: their sums do not wait for each other, and each edge is read
once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuprof.replay.graph import NEVER, Graph, gpu_nodes
from gpuprof.replay.simulate import FEWEST_IN_THREAD, ROUNDS, Schedule, step_of
from gpuprof.tracefile.background import Background
from gpuprof.tracefile.compiled import compiled
from gpuprof.tracefile.remembered import is_remembered, remember
from gpuprof.tracefile.trace import I64, U8
from gpuprof.units import Convention, Entries

AT_ONCE: Convention[Entries] = 4
"""Graphs that the machine code simulates together: their numbers fill one vector register."""
_PLAIN, _END_READ, _START_READ = 1, 2, 4


def steps_of(graphs: Sequence[Graph]) -> list[float]:
    """`step_of` each graph, ns; faster than one by one."""
    simulate_steps(graphs)
    return [step_of(graph) for graph in graphs]


def simulate_steps(graphs: Sequence[Graph]) -> None:
    """Simulates graphs, so that `step_of` knows their steps: four together where they have the same edges."""
    same: dict[Hashable, dict[int, Graph]] = {}
    for graph in graphs:
        if not is_remembered(step_of, graph):
            same.setdefault(_structure(graph), {})[id(graph)] = graph
    for alike in (list(found.values()) for found in same.values()):
        for some in (alike[at : at + AT_ONCE] for at in range(0, len(alike), AT_ONCE)):
            if len(some) > 1:
                _simulate(some)


class SimulatedTogether:
    """Simulates graphs whose steps will be needed, when some have come together; in another thread if they are large,
    while the next ones are made."""

    def __init__(self, largest: Graph) -> None:
        self._background = Background(worth_it=len(largest) >= FEWEST_IN_THREAD)
        self._waiting: list[Graph] = []
        self._running: list[Callable[[], None]] = []

    def begin(self, graph: Graph, then: Callable[[], float]) -> Callable[[], float]:
        """Returns a function that waits for the graph's step to be simulated, and returns what `then` makes of it; it
        keeps neither once it was called."""
        self._waiting.append(graph)
        if len(self._waiting) == AT_ONCE:
            self._start()
        return _Later(self._finish, then)

    def _start(self) -> None:
        graphs, self._waiting = self._waiting, []
        self._running.append(self._background.begin(simulate_steps, graphs))

    def _finish(self) -> None:
        self._start()
        running, self._running = self._running, []
        for wait in running:
            wait()


class _Later:
    """A number that is computed when it is first asked for."""

    def __init__(self, before: Callable[[], None], compute: Callable[[], float]) -> None:
        self._compute: Callable[[], float] | None = compute
        self._before = before
        self._found = 0.0

    def __call__(self) -> float:
        if self._compute is not None:
            self._before()
            self._found, self._compute = self._compute(), None
        return self._found


@dataclass(frozen=True, slots=True)
class _Reads:
    """Which nodes' times are read while a graph is simulated. Their numbers count only nodes whose ends are read."""

    of_source: I64
    """The edges' sources, whose identity says which edges these are."""
    flags: U8
    """Per node."""
    nodes: I64
    """Nodes whose ends are read."""
    source: I64
    """Per edge the number of its source; 0 for edges of plain nodes."""
    gpu: I64
    """Numbers of the GPU nodes."""
    step_end: I64
    """Per step the number of the node at whose end it ends."""


def _structure(graph: Graph) -> Hashable:
    """Equal for graphs that differ in durations and lags only; those graphs share the arrays of everything else."""
    edges = graph.edges
    columns = (edges.first, edges.source, edges.from_start, edges.plain, graph.step_end)
    return id(graph.shared), *map(id, columns)


def _reads(graph: Graph) -> _Reads:
    edges, found = graph.edges, graph.shared.get("reads")
    if found is not None and found.of_source is edges.source:
        return found
    used = ~edges.plain[edges.target]
    ends, starts = np.zeros(len(graph), bool), np.zeros(len(graph), bool)
    ends[edges.source[used]] = True
    starts[edges.source[used & edges.from_start]] = True
    for read in (gpu_nodes(graph)[0], graph.step_end):
        ends[read] = True
    number = np.cumsum(ends) - 1
    found = _Reads(
        of_source=edges.source,
        flags=(_PLAIN * edges.plain + _END_READ * ends + _START_READ * starts).astype(np.uint8),
        nodes=np.flatnonzero(ends),
        source=np.where(used, number[edges.source], 0),
        gpu=number[gpu_nodes(graph)[0]],
        step_end=number[graph.step_end],
    )
    graph.shared["reads"] = found
    return found


def _simulate(graphs: Sequence[Graph]) -> None:
    """Simulates up to four graphs with the same edges."""
    one, reads = graphs[0], _reads(graphs[0])
    lanes = [graphs[min(lane, len(graphs) - 1)] for lane in range(AT_ONCE)]
    end = np.stack([graph.before_ns[reads.nodes] for graph in lanes], axis=1)
    start = end.copy()
    done = np.full((AT_ONCE, ROUNDS, one.steps), NEVER)
    a, b, c, d = lanes
    step = gpu_nodes(one)[1]
    _run(
        a.duration_ns, b.duration_ns, c.duration_ns, d.duration_ns,
        a.edges.lag_ns, b.edges.lag_ns, c.edges.lag_ns, d.edges.lag_ns,
        reads.flags, one.edges.first, reads.source, one.edges.from_start, start, end,
        reads.gpu, step, reads.step_end, done,
    )  # fmt: skip
    working = int(np.count_nonzero(np.bincount(step, minlength=one.steps)))
    none = np.empty(0)
    for graph, finished in zip(graphs, done, strict=False):
        remember(step_of, graph, Schedule(graph, none, none, finished, working).step_ns)


@compiled
def _run(
    duration_0, duration_1, duration_2, duration_3, lag_0, lag_1, lag_2, lag_3,
    flags, first, source, from_start, start, end, gpu, step, step_end, done,
):  # fmt: skip  # pragma: no cover - compiled
    """As `simulate` runs one graph. `start` and `end` hold a row for each node whose end is read; a column is a
    graph."""
    for r in range(done.shape[1]):
        t0 = t1 = t2 = t3 = NEVER
        row = 0
        for node in range(len(flags)):
            if flags[node] & _PLAIN == 0:
                t0 = t1 = t2 = t3 = NEVER
                for e in range(first[node], first[node + 1]):
                    times = start if from_start[e] else end
                    t0 = max(t0, times[source[e], 0] + lag_0[e])
                    t1 = max(t1, times[source[e], 1] + lag_1[e])
                    t2 = max(t2, times[source[e], 2] + lag_2[e])
                    t3 = max(t3, times[source[e], 3] + lag_3[e])
            if flags[node] & _START_READ:
                start[row, 0], start[row, 1], start[row, 2], start[row, 3] = t0, t1, t2, t3
            t0 += duration_0[node]
            t1 += duration_1[node]
            t2 += duration_2[node]
            t3 += duration_3[node]
            if flags[node] & _END_READ:
                end[row, 0], end[row, 1], end[row, 2], end[row, 3] = t0, t1, t2, t3
                row += 1
        for lane in range(len(done)):
            for k in range(len(gpu)):
                done[lane, r, step[k]] = max(done[lane, r, step[k]], end[gpu[k], lane])
            whole = NEVER
            for s in range(len(step_end)):
                whole = max(whole, done[lane, r, s], end[step_end[s], lane])
                done[lane, r, s] = whole
