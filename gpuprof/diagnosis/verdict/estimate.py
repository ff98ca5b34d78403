"""How each device spends a step of the replayed loop, and the causes of its idle time."""

from __future__ import annotations

import numpy as np

from gpuprof.calibration import thresholds as thresholds_calibrated
from gpuprof.diagnosis.detect.cpu.collecting import Collecting
from gpuprof.diagnosis.idle.gaps import CAUSES, COLLECTING, IDLE_CAUSES, calls_by_cause
from gpuprof.diagnosis.result.diagnosis import CauseTime, DeviceEstimate
from gpuprof.replay.graph import INPUT, Graph, launcher_of
from gpuprof.replay.simulate import Schedule
from gpuprof.timeline.cpu.cpu_compute import computing
from gpuprof.timeline.cpu.dispatch import has_ops
from gpuprof.timeline.cpu.silence import holes
from gpuprof.timeline.cpu.slow_calls import within_slow
from gpuprof.timeline.devices import COMMUNICATE, COMPUTE, COPY
from gpuprof.timeline.intervals import EMPTY, Cover, Intervals, clip, complement, join, union
from gpuprof.timeline.nesting import inherit, inside
from gpuprof.tracefile.distinct import rows_by_value
from gpuprof.tracefile.trace import F64, I64, Mask

_DEVICE, _PYTHON, _UNKNOWN = (CAUSES.index(name) for name in ("device", "python", "unknown"))


_COLLECTING = IDLE_CAUSES.index(COLLECTING)


def estimate_devices(schedule: Schedule, step_ns: float, found: Collecting | None = None) -> tuple[DeviceEstimate, ...]:
    """The median step of every device in the last round of the loop, or the mean step if none is usual, in whole ns;
    its parts sum exactly. `found`: the nodes that collect garbage.

    The round is a circle: work that runs past its end continues at its beginning.
    """
    graph = schedule.graph
    timeline = graph.timeline
    marks = np.concatenate([schedule.finished_ns[-2, -1:], schedule.finished_ns[-1]])
    first, last = 0, len(marks) - 1
    if schedule.has_usual_step:
        first = int(np.abs(np.diff(marks) - np.median(np.diff(marks))).argmin())
        last = first + 1
    low, high = round(float(marks[first])), max(round(float(marks[last])), round(float(marks[first])) + 1)
    circle = round(float(marks[-1] - marks[0]))
    causes = _HostCauses(schedule, found)
    result = []
    on_gpu = np.flatnonzero(graph.on_gpu)
    of_device = rows_by_value(timeline.trace.gpu.device[graph.gpu_row[on_gpu]])
    for device in timeline.devices:
        nodes = on_gpu[of_device.get(device.device, on_gpu[:0])]
        kind = timeline.kind[graph.gpu_row[nodes]]
        reached, times = EMPTY, []
        for k in (COMPUTE, COMMUNICATE, COPY):
            mine = nodes[kind == k]
            before = reached.total
            reached = join(reached, _on_circle(schedule.start_ns[mine], schedule.end_ns[mine], low, high, circle))
            times.append(reached.total - before)
        gaps = complement(reached, low, high)
        by_cause = causes.of(gaps, nodes)
        if found is not None:
            by_cause = _limited(by_cause, found.usual_ns * (last - first), causes.of_stretch)
        result.append(_estimate(device.device, step_ns, high - low, times, by_cause))
    return tuple(result)


def _on_circle(start: F64, end: F64, low: int, high: int, circle: int) -> Intervals:
    first, last = np.round(start).astype(np.int64), np.round(end).astype(np.int64)
    turns = [clip(union(first + shift, last + shift), low, high) for shift in (-circle, 0, circle)]
    return join(*turns)


def _limited(by_cause: dict[int, float], most_ns: float, else_: int) -> dict[int, float]:
    """Idle time by cause, garbage collection limited to `most_ns`; the rest goes to the cause `else_`."""
    over = max(by_cause.get(_COLLECTING, 0.0) - most_ns, 0.0)
    if not over:
        return by_cause
    return by_cause | {_COLLECTING: most_ns, else_: by_cause.get(else_, 0.0) + over}


def _estimate(device: int, step_ns: float, span: int, times: list[int], by_cause: dict[int, float]) -> DeviceEstimate:
    step = round(step_ns)
    share = step / span
    work = [int(ns * share) for ns in times]
    idle = step - sum(work)
    total = sum(by_cause.values())
    causes = {IDLE_CAUSES[c]: int(ns * idle / total) for c, ns in by_cause.items()} if total else {}
    if causes:
        causes[max(causes, key=lambda c: causes[c])] += idle - sum(causes.values())
    elif idle:
        causes = {"device": idle}
    waiting = idle - causes.get("device", 0) - causes.get("unknown", 0)
    return DeviceEstimate(
        device=device,
        step_ns=step,
        compute_ns=work[0],
        communication_ns=work[1],
        copy_ns=work[2],
        idle_ns=idle,
        cpu_bound_fraction=waiting / step if step else None,
        idle_by_cause=tuple(CauseTime(c, ns, 0) for c, ns in sorted(causes.items(), key=lambda item: -item[1]) if ns),
    )


class _LaneCover:
    """How much of some time the nodes of a lane cover: `Cover` for replayed times, ns, which are in order and do not
    overlap."""

    def __init__(self, start: F64, end: F64) -> None:
        self._start, self._end = start, end
        self._before = np.concatenate([[0.0], np.cumsum(end - start)])

    def within(self, low: F64, high: F64) -> F64:
        """How much of each [low, high) they cover."""
        return np.maximum(self._until(high) - self._until(low), 0.0)

    def _until(self, t: F64) -> F64:
        if not len(self._start):
            return np.zeros(len(t))
        k = np.searchsorted(self._start, t, side="right")
        over = np.where(k > 0, np.maximum(self._end[np.maximum(k - 1, 0)] - t, 0.0), 0.0)
        return self._before[k] - over


class _HostCauses:
    """What the CPU was doing while a device of the replayed loop waited for a launch."""

    def __init__(self, schedule: Schedule, found: Collecting | None = None) -> None:
        self._schedule = schedule
        graph = schedule.graph
        self._cause = host_causes(graph)
        self.of_stretch = _PYTHON
        if found is not None:
            self._cause = self._cause.copy()
            self.of_stretch = int(self._cause[found.nodes[0]])
            self._cause[found.nodes] = _COLLECTING
        self._launch = launcher_of(graph)
        self._lanes = {lane: self._lane(lane) for lane in np.unique(graph.lane[graph.lane >= 0]).tolist()}

    def _lane(self, lane: int) -> tuple[_LaneCover, dict[int, _LaneCover]]:
        """A lane's nodes without those that stall: all, and by cause."""
        graph, schedule = self._schedule.graph, self._schedule
        own = np.flatnonzero((graph.lane == lane) & ~(graph.waits & (graph.call < 0)))
        # The waiting part of a call begins when its own work, the node before it, ends.
        start = np.where(
            graph.waits[own], schedule.end_ns[np.maximum(own_before(graph, own), 0)], schedule.start_ns[own]
        )
        end, cause = schedule.end_ns[own], self._cause[own]
        parts = {code: _LaneCover(start[rows], end[rows]) for code, rows in rows_by_value(cause).items()}
        return _LaneCover(start, end), parts

    def of(self, gaps: Intervals, nodes: I64) -> dict[int, float]:
        """Cause → ns, summed over the gaps of one device; `nodes`: that device's work."""
        graph, schedule = self._schedule.graph, self._schedule
        result: dict[int, float] = {}
        if not len(gaps) or not len(nodes):
            return result
        order = nodes[np.argsort(schedule.start_ns[nodes], kind="stable")]
        starts = np.round(schedule.start_ns[order])
        k = np.searchsorted(starts, gaps.end, side="left")
        known = k < len(order)
        awaited = order[np.minimum(k, len(order) - 1)]
        launch = self._launch[awaited]
        launched = np.where(
            known & (launch >= 0), schedule.end_ns[np.maximum(launch, 0)], gaps.start.astype(np.float64)
        )
        launched = np.where(known, launched, gaps.end)  # at the end of the loop the CPU has not launched it yet
        launched = np.clip(launched, gaps.start, gaps.end)
        result[_DEVICE] = float((gaps.end - launched).sum())
        main = graph.timeline.main_thread
        lane = np.where(known & (launch >= 0), graph.lane[np.maximum(launch, 0)], main)
        for one in np.unique(lane).tolist():
            mine = np.flatnonzero(lane == one)
            a, b = gaps.start[mine].astype(np.float64), launched[mine]
            left = float((b - a).sum())
            covered = np.zeros(len(mine))
            for thread in dict.fromkeys((one, main)):
                if thread not in self._lanes:
                    continue
                whole, parts = self._lanes[thread]
                if thread != one:
                    # While the launching thread stalled, the main thread gives the cause for the rest of each gap.
                    room = np.maximum((b - a) - covered, 0)
                    total = whole.within(a, b)
                    factor = np.divide(room, total, out=np.zeros(len(mine)), where=total > 0).clip(0, 1)
                else:
                    factor = np.ones(len(mine))
                for code, part in parts.items():
                    ns = part.within(a, b) * factor
                    covered += ns
                    result[code] = result.get(code, 0.0) + float(ns.sum())
            # If no thread has an event, what the CPU did is unknown.
            result[_UNKNOWN] = result.get(_UNKNOWN, 0.0) + max(left - float(covered.sum()), 0.0)
        return result


def own_before(graph: Graph, waits: I64) -> I64:
    """The nodes of a call's own work, given the nodes of its wait: the source of the host-order edge."""
    edges = graph.edges
    first = edges.first[waits]
    return np.where(graph.waits[waits], edges.source[np.minimum(first, len(edges.source) - 1)], waits)


def host_causes(graph: Graph) -> np.ndarray:
    """Cause of a device's wait while each CPU node runs; precedence as for gaps."""
    if "host_causes" not in graph.shared:
        graph.shared["host_causes"] = cause = _host_causes(graph)
        cause.flags.writeable = False
    return graph.shared["host_causes"]


def _host_causes(graph: Graph) -> np.ndarray:
    timeline = graph.timeline
    calls = timeline.trace.calls
    cause = np.where(_silent(graph), _UNKNOWN, _PYTHON).astype(np.uint8)
    in_op = np.zeros(len(graph), bool)
    if len(timeline.trace.ops):
        ops = np.append(timeline.trace.ops.kind == 0, False)
        in_op = _within_op(graph, ops)
    bare = graph.recorded_end_ns - graph.recorded_start_ns <= thresholds_calibrated.DISPATCH_NS.whole
    bare &= not has_ops(timeline.trace)
    cause[in_op | bare | (graph.call >= 0)] = CAUSES.index("launch")
    cause[np.append(within_slow(timeline), False)[graph.scope]] = CAUSES.index("slow_call")
    computes = np.append(inside(timeline.nesting, computing(timeline)), False)[graph.scope]
    cause[computes & (graph.call < 0)] = CAUSES.index("cpu_compute")
    if len(calls):
        copy, sync, allocator = calls_by_cause(timeline)
        for name, mask in (("sync", sync), ("allocator", allocator), ("transfer", copy)):
            cause[np.append(mask, False)[graph.call]] = CAUSES.index(name)
    cause[graph.resource == INPUT] = CAUSES.index("input")
    return cause


def _silent(graph: Graph) -> Mask:
    """Nodes during most of whose time nothing was recorded."""
    found = holes(graph.timeline)
    if not len(found):
        return np.zeros(len(graph), bool)
    low = graph.timeline.window[0]
    start, end = (np.round(t).astype(np.int64) + low for t in (graph.recorded_start_ns, graph.recorded_end_ns))
    return (end > start) & (2 * Cover(found).between(start, end) > end - start)


def _within_op(graph: Graph, ops: Mask) -> Mask:
    """Nodes inside an operator, even if a range is innermost."""
    timeline = graph.timeline
    kind = np.where(ops[:-1], 1, -1)
    inside = np.append(inherit(kind, timeline.nesting.parent, -1) == 1, False)
    return inside[graph.scope]
