"""What recording cost the CPU, and how that is removed from the graph. Every recorded op, call and frame cost some time
on its thread, partly inside the recorded interval and partly around it. That cost is removed from the CPU time on
either side of each event's begin and end; the step without it is then simulated, since CPU time that overlaps with GPU
work costs nothing. `host_pace` estimates how fast a CPU records, `profiler_fit` fits the cost to a measured step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuprof.calibration import profiler as calibrated
from gpuprof.replay.graph import Graph
from gpuprof.timeline.cpu.dispatch import lacks_inner_ops, recorded_ops
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.compiled import compiled
from gpuprof.tracefile.distinct import distinct, ordered
from gpuprof.tracefile.trace import F64, I32, I64, Calls, Frames, Mask, Ops
from gpuprof.units import Assumed, Code, Convention, Share

LEAST_OF_RECORDED: Assumed[Share] = 0.1
"""Smallest share of a piece's recorded time that remains."""


@dataclass(frozen=True, slots=True)
class EventCounts:
    """How many recorded events touch each node: ops, calls, frames, kernel ranges and nodes of CUDA graphs, in
    fractions.

    A quarter of an op or call belongs to each piece on either side of its begin and of its end; half of a frame to each
    piece that it begins or ends in. Ops that were removed from the file are attributed to the remaining ones.
    """

    ops: F64
    calls: F64
    frames: F64
    kernel_ranges: F64
    graph_nodes: F64

    def cost_ns(self, scale: float) -> F64:
        """Time that recording added to each node, ns."""
        events = (self.ops + self.calls) * calibrated.EVENT_NS.value + self.frames * calibrated.FRAME_NS.value
        return scale * (
            events
            + self.kernel_ranges * calibrated.KERNEL_RANGE_NS.value
            + self.graph_nodes * calibrated.GRAPH_NODE_NS.value
        )


def recorded_events(graph: Graph) -> EventCounts:
    """The recorded events around every host node; GPU nodes have none."""
    timeline = graph.timeline
    low = timeline.window[0]
    begin = np.round(graph.recorded_start_ns).astype(np.int64) + low
    end = np.round(graph.recorded_end_ns).astype(np.int64) + low
    host = (graph.lane >= 0) & ~graph.waits
    tables = _recorded_tables(timeline)
    counts = [np.zeros(len(graph)) for _ in tables]
    for lane in distinct(graph.lane[host]).tolist():
        mine = np.flatnonzero(host & (graph.lane == lane))
        begins, ends = begin[mine], end[mine]
        for table, count in zip(tables, counts, strict=True):
            rows = table.thread == lane
            times = ordered(np.concatenate([table.start_ns[rows], table.end_ns[rows]]))
            if table is tables[_FRAMES]:
                count[mine] = _between(times, begins, ends) / 2
            else:
                count[mine] = (_at(times, begins) + _at(times, ends)) / 4
    ops, calls, frames, kernel_ranges = counts
    return with_left_out(EventCounts(ops, calls, frames, kernel_ranges, _graph_nodes(graph, host)), timeline)


def recorded_in_window(timeline: Timeline) -> EventCounts:
    """The recorded events of the whole window on the threads that launch work, as if of one node; what was left out of
    the file is not counted. For recordings that cannot be replayed."""
    calls, links = timeline.trace.calls, timeline.links
    threads = np.unique(np.append(links.thread[links.thread >= 0], timeline.main_thread))
    low, high = timeline.window

    def inside(table: _Events | Calls) -> Mask:
        return (table.start_ns >= low) & (table.start_ns < high) & np.isin(table.thread, threads)

    ops, in_calls, frames, kernel_ranges = (
        np.array([float(np.count_nonzero(inside(table)))]) for table in _recorded_tables(timeline)
    )
    launched = np.bincount(links.call[links.call >= 0], minlength=len(calls))
    nodes = np.array([float((launched - 1).clip(0)[inside(calls)].sum())])
    return EventCounts(ops, in_calls, frames, kernel_ranges, nodes)


def with_left_out(recorded: EventCounts, timeline: Timeline) -> EventCounts:
    """The same including ops that were left out of the file after recording."""
    if not lacks_inner_ops(timeline):
        return recorded
    return replace(recorded, ops=recorded.ops * (1 + calibrated.LEFT_OUT.value))


@dataclass(frozen=True, slots=True)
class _Events:
    """One kind of recorded events."""

    thread: I32
    start_ns: I64
    end_ns: I64


_FRAMES: Convention[Code] = 2


def _recorded_tables(timeline: Timeline) -> tuple[_Events, _Events, _Events, _Events]:
    """Ops, calls, frames, and the ops that are named as their own kernel."""
    trace = timeline.trace
    own = np.zeros(len(trace.ops), bool)
    launched = np.flatnonzero(timeline.links.op >= 0)
    op = timeline.links.op[launched]
    own[op[trace.ops.name[op] == trace.gpu.name[launched]]] = True
    recorded = recorded_ops(trace)

    def events(table: Ops | Calls | Frames, rows: Mask | slice) -> _Events:
        return _Events(table.thread[rows], table.start_ns[rows], table.end_ns[rows])

    every = slice(None)
    return (
        events(trace.ops, recorded), events(trace.calls, every), events(trace.frames, every),
        events(trace.ops, own & recorded),
    )  # fmt: skip


def _graph_nodes(graph: Graph, host: Mask) -> F64:
    """Per node that is in a call: the kernels and host segments that the call launched beyond the first, shared by the
    call's nodes."""
    calls = len(graph.timeline.trace.calls)
    launched = np.bincount(graph.call[graph.on_gpu & (graph.call >= 0)], minlength=calls)
    nodes = np.flatnonzero(host & (graph.call >= 0))
    shared = np.bincount(graph.call[nodes], minlength=calls)
    count = np.zeros(len(graph))
    count[nodes] = ((launched - 1).clip(0) / np.maximum(shared, 1))[graph.call[nodes]]
    return count


def _at(times: I64, t: I64) -> I64:
    """How many of `times`, which ascend, equal each `t`; faster if `t` ascends as well."""
    count = np.empty(len(t), np.int64)
    _count(times, t, count)
    return count


@compiled
def _count(times, t, count):  # pragma: no cover - compiled
    k = 0
    for i in range(len(t)):
        if i > 0 and t[i] < t[i - 1]:
            k = 0
        while k < len(times) and times[k] < t[i]:
            k += 1
        after = k
        while after < len(times) and times[after] == t[i]:
            after += 1
        count[i] = after - k


def _between(times: I64, low: I64, high: I64) -> I64:
    return np.searchsorted(times, high, side="left") - np.searchsorted(times, low, side="left")


def without(graph: Graph, cost_ns: F64) -> Graph:
    """The graph with the sum of `cost_ns` removed from the CPU work. Most of it is removed where it was recorded, and
    what exceeds a node's time from the next node of its lane; the share `profiler.DIFFUSE` is removed from all CPU work
    in proportion to its time, of which at most `profiler.REFILL_NS` of a piece count.
    """
    whole, placed = (_reduced(graph, part * cost_ns) for part in (1.0, 1.0 - calibrated.DIFFUSE.value))
    host = (graph.lane >= 0) & ~graph.waits
    cold = np.where(host, np.minimum(placed, calibrated.REFILL_NS.value), 0.0)
    diffuse = float((placed - whole).sum()) / max(float(cold.sum()), 1.0)
    return graph.with_durations(
        np.maximum(placed - diffuse * cold, np.where(host, LEAST_OF_RECORDED * graph.duration_ns, placed))
    )


def _reduced(graph: Graph, cost_ns: F64) -> F64:
    """The durations of nodes after subtracting the cost of each from it or, if it is too short, from the next."""
    left = graph.duration_ns.copy()
    debt = np.zeros(int(graph.lane.max(initial=0)) + 1)
    _reduce(graph.duration_ns, cost_ns, graph.lane, LEAST_OF_RECORDED, left, debt)
    return left


@compiled
def _reduce(duration, cost, lane, least, left, debt):  # pragma: no cover - compiled
    for node in range(len(duration)):
        if lane[node] < 0:
            continue
        wanted = cost[node] + debt[lane[node]]
        taken = min(wanted, (1 - least) * duration[node])
        left[node] -= taken
        debt[lane[node]] = wanted - taken
