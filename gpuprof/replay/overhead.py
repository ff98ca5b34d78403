"""What recording cost the host, taken out of the graph again.

Every recorded op, call and frame cost the thread that it was recorded on some time, partly inside the interval that
was written down and partly around it. That cost is taken out of the pieces of host work on either side of each
event's begin and end; what the step then takes comes from simulating it, since time that the host spends while the
GPU is at work is no loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np

from gpuprof.replay.graph import F64, HOST, INPUT, Graph, Mask
from gpuprof.replay.simulate import simulate
from gpuprof.replay.transform import scale as by_resource
from gpuprof.timeline.dispatch import lacks_inner_ops, recorded_ops
from gpuprof.tracefile.model import I64, Calls, Ops

EVENT_NS = 2_300.0
"""What a recorded op or call costs, with shapes recorded, on a host of pace 1: of the values between 1.6 and 2.8 µs
the one with the least error over 89 H200 recordings (28 of them in benchmarks/profiler_cost.py) whose step was also
timed without a profiler, by replaying each without it. A cost that goes with the pace fits them better than a fixed one
or one that goes with its root. A call or range recorded by Nsight Systems costs about as much: see
NSYS_SPREAD."""
LEFT_OUT = 0.93
"""Ops that were left out for each that is left, in a file without those that lie in others and make no call: the median
of 28 whole recordings of trainings, in which it is 0.49 to 1.36. With it all events, calls included, are told to within
0.85 to 1.19 times what they are."""
LEFT_OUT_SPREAD = 1.1
"""Eight of ten of those are told to within this many times."""
FRAME_NS = 700.0
"""A recorded Python frame: 18,700 frames a step make one program's recorded step 18 ms longer, 0.96 µs each, memory
being recorded as well, which is taken for a quarter of it (not measured apart)."""
KERNEL_RANGE_NS = 15_000.0
"""What an op takes more that is named as its own kernel: Inductor's launcher formats the kernel's arguments for the
profiler. From one program with 1,650 such ops a step, whose unprofiled step is known; three others agree."""
GRAPH_NODE_NS = 1_700.0
"""What `cudaGraphLaunch` takes more for every node whose execution is recorded: its calls took 0.7 to 1.2 ms for graphs
of 314 to 594 nodes on an H200, most of which is taken for the recording's (not measured apart)."""
PROBES = (("aten::as_strided", 420.0, 0.05), ("aten::empty_strided", 2_950.0, 0.0))
"""Ops that do next to nothing, so that their recorded time tells how fast the host records: with the median of the
recordings that EVENT_NS is from, and the share of all ops that makes them trusted (compiled code holds few, in places
that are not typical)."""
LAUNCH_PROBE = ("cudaLaunchKernel", 4_600.0)
"""Where no such op tells it a launch does: of 26 recordings on H200 hosts that hold both, eight of ten have
a pace told by the one that is within 1.2 times that told by the other (correlation of the logarithms 0.94), and of 19
that the host binds eight of ten cost within this many times what launches say (1.22 by the ops)."""
LAUNCH_SPREAD = 1.33
NSYS_PROBE = ("cudaLaunchKernel", 3_900.0)
"""The same for Nsight Systems, which records calls, with the median of a recording of a host of pace 1."""
NSYS_SPREAD = 1.6
"""What a call or range recorded by Nsight Systems costs was told by six processes on H200 hosts, of which each timed
its steps before the capture and in it: 1.6, 2.3, 3.6, 4.9, 6.6 and 8.5 µs an event, with paces of 1.0, 1.3, 1.7, 1.3,
1.9 and 1.8. EVENT_NS times the pace is 0.5 to 1.4 times that."""
FEWEST_OPS = 30
PACES = (0.6, 3.0)
"""Hosts that were seen lie between 0.8 and 2.6; beyond, something else makes the op long."""
SPREAD = 1.2
"""The cost of an event may be so many times less or more: the step's interval then meets the measured range for nine of
ten of those recordings."""
NOISE = 0.04
"""The same program's GPU-bound step differs by this much from one process to the next (clocks, memory placement), in
eight of ten; so no interval is narrower."""
HOST_NOISE = 0.05
"""The same for the host's time, where a measured step says what it is."""
DIFFUSE = 0.3
"""The part of the cost that is not paid where events are recorded but by all of the host's work with torch: what the
profiler writes takes the caches from it. Without it too much is taken from where events are densest, loops of short
ops, and what is left without such a loop is 17 to 27 % too long in three programs of benchmarks/accuracy.py; from 0.5
on other predictions suffer more than these gain."""
REFILL_NS = 50_000.0
"""After so long in one piece the host has its caches back: a batch fetched in plain Python took 70 ms unrecorded and
63 ms in recorded steps, and a sleep is as long as ever. 50 µs are some 2 MB from memory, what a core's caches hold."""
LEAST = 0.1
"""Share of a piece's recorded time that is left at least."""
MOST = SPREAD
"""A measured step can ask for this many times the cost that is usual on such a host before the host's own speed must
explain it."""
FARTHEST = 1.6
"""Beyond that the host itself was quicker or slower: by e to the power of this at most."""
FLAT = 5e-3
"""Where taking out more gains less than this the step does not wait for what recording cost."""
QUICKER, TOLD = 0.9, 0.01
"""A step that a host of 0.9 of the time does not shorten by a hundredth says no more of the host: the GPU binds it."""
STEADY = 0.02
"""The GPU's part of a step differs by this much between the baseline of a run and its recorded steps (0.8 to 1.6 % less
in five runs that the GPU binds). What this explains of a measured step says nothing of the host."""
ROUNDS = 3
"""Rounds of the loop after which a step is read off: the second fills the queues, the third repeats."""
CLOSE = 1e-3
"""A fit is good when the step is this near to the measured one."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The graph without the profiler's cost, and what is known of that cost."""

    graph: Graph
    step_ns: float
    low_ns: float
    high_ns: float
    """Eight of ten steps lie between the two."""
    fitted: bool
    """Whether a measured step says what the cost was."""
    cost_ns: float
    """Removed from the host's work per step."""
    scale: float
    """The cost of an event, of the usual one."""
    quicker: Graph
    slower: Graph
    """The graph at the ends of what the host's own time may be: eight of ten lie between."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """How many recorded events touch each node: ops, calls, frames, kernel ranges and nodes of CUDA graphs, in
    fractions.

    A quarter of an op or call belongs to each piece on either side of its begin and of its end; half of a frame to each
    piece that it begins or ends in. Ops that were left out of the file are counted with those that are left.
    """

    ops: F64
    calls: F64
    frames: F64
    kernel_ranges: F64
    graph_nodes: F64

    def cost_ns(self, scale: float) -> F64:
        """What recording added to each node."""
        events = (self.ops + self.calls) * EVENT_NS + self.frames * FRAME_NS
        return scale * (events + self.kernel_ranges * KERNEL_RANGE_NS + self.graph_nodes * GRAPH_NODE_NS)


def recorded_events(graph: Graph) -> Recorded:
    """The recorded events around every host node; GPU nodes have none."""
    timeline = graph.timeline
    trace, low = timeline.trace, timeline.window[0]
    begin = np.round(graph.recorded_start_ns).astype(np.int64) + low
    end = np.round(graph.recorded_end_ns).astype(np.int64) + low
    host = (graph.lane >= 0) & ~graph.waits
    own = np.zeros(len(trace.ops), bool)
    launched = np.flatnonzero(timeline.links.op >= 0)
    op = timeline.links.op[launched]
    own[op[trace.ops.name[op] == trace.gpu.name[launched]]] = True
    recorded = recorded_ops(trace)
    own &= recorded
    tables = (
        (trace.ops.thread[recorded], trace.ops.start_ns[recorded], trace.ops.end_ns[recorded], False),
        (trace.calls.thread, trace.calls.start_ns, trace.calls.end_ns, False),
        (trace.frames.thread, trace.frames.start_ns, trace.frames.end_ns, True),
        (trace.ops.thread[own], trace.ops.start_ns[own], trace.ops.end_ns[own], False),
    )
    counts = []
    for thread, starts, ends, inside in tables:
        count = np.zeros(len(graph))
        for lane in np.unique(graph.lane[host]).tolist():
            rows = thread == lane
            times = np.sort(np.concatenate([starts[rows], ends[rows]]))
            mine = np.flatnonzero(host & (graph.lane == lane))
            if inside:
                count[mine] = _between(times, begin[mine], end[mine]) / 2
            else:
                count[mine] = (_at(times, begin[mine]) + _at(times, end[mine])) / 4
        counts.append(count)
    ops, calls, frames, kernel_ranges = counts
    if lacks_inner_ops(trace, timeline.nesting):
        ops = ops * (1 + LEFT_OUT)
    return Recorded(ops, calls, frames, kernel_ranges, _graph_nodes(graph, host))


def _graph_nodes(graph: Graph, host: Mask) -> F64:
    """Per node that is in a call: the pieces of work that the call launched beyond the first, shared by the call's
    nodes."""
    calls = len(graph.timeline.trace.calls)
    launched = np.bincount(graph.call[graph.on_gpu & (graph.call >= 0)], minlength=calls)
    nodes = np.flatnonzero(host & (graph.call >= 0))
    shared = np.bincount(graph.call[nodes], minlength=calls)
    count = np.zeros(len(graph))
    count[nodes] = ((launched - 1).clip(0) / np.maximum(shared, 1))[graph.call[nodes]]
    return count


def _at(times: I64, t: I64) -> I64:
    return np.searchsorted(times, t, side="right") - np.searchsorted(times, t, side="left")


def _between(times: I64, low: I64, high: I64) -> I64:
    return np.searchsorted(times, high, side="left") - np.searchsorted(times, low, side="left")


def without(graph: Graph, cost_ns: F64) -> Graph:
    """The graph with the sum of `cost_ns` taken out of the host's work.

    Most of it where it is recorded, and what a node cannot give, the next of its lane does; the DIFFUSE part out of
    all of the host's work, in proportion to its time, of which in one piece REFILL_NS count at most.
    """
    lanes = int(graph.lane.max(initial=0)) + 1
    whole, placed = (
        _reduce(graph.duration_ns, part * cost_ns, graph.lane, lanes, LEAST) for part in (1.0, 1.0 - DIFFUSE)
    )
    host = (graph.lane >= 0) & ~graph.waits
    cold = np.where(host, np.minimum(placed, REFILL_NS), 0.0)
    diffuse = float((placed - whole).sum()) / max(float(cold.sum()), 1.0)
    return graph.with_durations(np.maximum(placed - diffuse * cold, np.where(host, LEAST * graph.duration_ns, placed)))


@numba.njit(cache=True)
def _reduce(duration, cost, lane, lanes, least):  # pragma: no cover - compiled
    left = duration.copy()
    debt = np.zeros(lanes)
    for node in range(len(duration)):
        if lane[node] < 0:
            continue
        wanted = cost[node] + debt[lane[node]]
        taken = min(wanted, (1 - least) * duration[node])
        left[node] -= taken
        debt[lane[node]] = wanted - taken
    return left


def host_pace(graph: Graph) -> float:
    """How slowly the host records, 1 for the median host that EVENT_NS is from: the time of its shortest op over the
    usual, or of a launch where such ops were not recorded."""
    return _paced(graph)[0]


def _paced(graph: Graph) -> tuple[float, float]:
    """The host's pace, and how many times less or more than it says the cost of an event may be."""
    trace = graph.timeline.trace
    if trace.reading.kind == "nsys":
        probes: tuple[tuple[Ops | Calls, str, float, float, float], ...] = (
            (trace.calls, *NSYS_PROBE, 0.0, NSYS_SPREAD),
        )
    elif lacks_inner_ops(trace, graph.timeline.nesting):
        # The ops that do next to nothing are gone but for those that are called by themselves, or had to wait.
        probes = ((trace.calls, *LAUNCH_PROBE, 0.0, _both(LAUNCH_SPREAD, LEFT_OUT_SPREAD)),)
    else:
        ops = tuple((trace.ops, *probe, SPREAD) for probe in PROBES)
        probes = (*ops, (trace.calls, *LAUNCH_PROBE, 0.0, LAUNCH_SPREAD))
    for table, name, usual, share, spread in probes:
        number = trace.string_ids.get(name)
        rows = np.flatnonzero(table.name == number) if number is not None else np.empty(0, np.int64)
        took = (table.end_ns - table.start_ns)[rows]
        # Recordings of before 2024 hold whole microseconds, which tell nothing of what takes less than one.
        if len(rows) >= max(FEWEST_OPS, share * len(table)) and np.any(took % 1000):
            return float(np.clip(float(np.median(took)) / usual, *PACES)), spread
    return 1.0, probes[-1][-1]


def _both(one: float, other: float) -> float:
    """How many times less or more a product may be whose factors, independent of each other, may each be so many."""
    return float(np.exp(np.hypot(np.log(one), np.log(other))))


def remove_profiler(
    graph: Graph, measured_ns: float | None = None, spread: tuple[float, float] | None = None
) -> Removal:
    """The graph as it would have run unprofiled.

    `measured_ns`: a step timed without a profiler, which the host's time is then fitted to as far as the step waits for
    the host, and `spread` its 80 % interval. Without it the usual cost per event is removed, and the interval is that
    of the cost.
    """
    events = recorded_events(graph)
    pace, spread_of_cost = _paced(graph)
    per_step = float(events.cost_ns(1.0).sum()) / graph.steps
    usual, slower, quicker = (
        without(graph, events.cost_ns(scale)) for scale in (pace, pace / spread_of_cost, pace * spread_of_cost)
    )
    if measured_ns is None:
        step, slow, fast = (simulate(one, ROUNDS).step_ns for one in (usual, slower, quicker))
        low, high = _wider(step, min(fast, step), -1), _wider(step, max(slow, step), 1)
        return Removal(usual, step, low, high, False, pace * per_step, pace, quicker, slower)
    scale, reduced = _fitted(graph, events, pace, measured_ns)
    step = simulate(reduced, ROUNDS).step_ns
    if abs(step - measured_ns) > CLOSE * measured_ns:
        # Another clock, or what the graph does not know of.
        reduced = _by_one_factor(reduced, reduced.duration_ns > 0, measured_ns)
        step = simulate(reduced, ROUNDS).step_ns
    low, high = spread or (measured_ns, measured_ns)
    ends = (_as_told(reduced, _host_ns(one) / max(_host_ns(usual), 1.0), step) for one in (quicker, slower))
    return Removal(reduced, step, min(low, step), max(high, step), True, scale * per_step, scale, *ends)


def _fitted(graph: Graph, events: Recorded, pace: float, measured_ns: float) -> tuple[float, Graph]:
    """The cost of an event and the graph that comes nearest to the measured step with the likeliest host.

    A step that the GPU binds says of the host only that it is not slower than that; to fit the host to what is left
    between the two would make it as quick as the GPU's noise likes. So the host stays what it usually is, unless the
    GPU's noise does not explain the measured step, and leaves that only as far as needed: first by the cost of an
    event, then by its own speed.
    """
    most = MOST * pace

    def at(level: float, device: float) -> Graph:
        scale = min(max(level, 0.0), most)
        reduced = without(graph, events.cost_ns(scale))
        return by_resource(
            reduced, host=float(np.exp(scale - level)), input=float(np.exp(scale - level)), device=device
        )

    def step(level: float, device: float) -> float:
        return simulate(at(level, device), ROUNDS).step_ns

    def told(level: float, device: float) -> bool:
        graph = at(level, device)
        quicker = by_resource(graph, host=QUICKER, input=QUICKER)
        return simulate(quicker, ROUNDS).step_ns < (1 - TOLD) * simulate(graph, ROUNDS).step_ns

    level, device, slow, fast = pace, 1.0, 1 + STEADY, 1 / (1 + STEADY)
    if step(pace, slow) < measured_ns:
        device = slow
        if step(0.0, slow) >= measured_ns or told(0.0, slow):
            level = _first(lambda u: step(u, slow) <= measured_ns, -FARTHEST, pace)
    elif step(pace, fast) > measured_ns:
        # What taking out more does not help with is not the cost's.
        least = step(most, fast) * (1 + FLAT)
        most = _first(lambda u: step(u, fast) <= least, pace, most)
        level = _first(lambda u: step(u, fast) <= measured_ns or not told(u, fast), pace, most + FARTHEST)
        device = fast
    else:
        device = 1 / _first(lambda quicker: step(pace, 1 / quicker) <= measured_ns, fast, slow)
    if abs(step(level, 1.0) - measured_ns) <= CLOSE * measured_ns:
        device = 1.0
    return min(max(level, 0.0), most), at(level, device)


def _as_told(graph: Graph, factor: float, step_ns: float) -> Graph:
    """The graph with a host so many times slower or quicker, as far as the measured step leaves that open; by the
    noise of the host's time at least."""
    noise = float(np.log1p(HOST_NOISE))
    whole = max(abs(float(np.log(factor))), noise)

    def by(size: float) -> Graph:
        changed = float(np.exp(size if factor > 1 else -size))
        return by_resource(graph, host=changed, input=changed)

    def too_far(size: float) -> bool:
        return abs(simulate(by(size), ROUNDS).step_ns - step_ns) > STEADY * step_ns

    return by(_first(too_far, noise, whole))


def _host_ns(graph: Graph) -> float:
    return float(graph.duration_ns[np.isin(graph.resource, (HOST, INPUT))].sum())


def _wider(step: float, bound: float, side: int) -> float:
    """The bound of an interval on one side of the step, moved away from it by the noise between processes."""
    if step <= 0 or bound <= 0:
        return step
    return float(step * np.exp(side * np.hypot(np.log(bound / step), np.log1p(NOISE))))


def _first(holds: Callable[[float], bool], low: float, high: float) -> float:
    """From where on something holds that once it does holds for all that is larger; `high` if it never does."""
    if holds(low):
        return low
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _by_one_factor(graph: Graph, nodes: Mask, target: float) -> Graph:
    """The graph with these nodes all so much faster or slower that its step comes nearest to the target."""

    def by(factor: float) -> Graph:
        return graph.with_durations(np.where(nodes, graph.duration_ns * factor, graph.duration_ns))

    low, high = 0.2, 5.0
    for _ in range(24):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if simulate(by(middle), ROUNDS).step_ns > target else (middle, high)
    return by((low * high) ** 0.5)
