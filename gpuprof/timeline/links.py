"""From GPU work back to the call that launched it and the op that made the call.

By correlation id first, by flow arrows second, by External id third.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.timeline.nesting import Nesting, climb, climb_to_open
from gpuprof.tracefile.distinct import distinct
from gpuprof.tracefile.trace import ABSENT, ANNOTATION, FLOW_LAUNCH, I32, I64, OP, Trace


@dataclass(frozen=True, slots=True)
class Links:
    """Per GPU event: row of its call and of its op (-1: unknown), the launching thread, and when it was launched."""

    call: I64
    op: I64
    """Innermost operator; annotations do not count."""
    scope: I64
    """Innermost op or annotation, from which the phase is inferred. If the launching thread has none, the annotation
    that is open on the thread that annotates: autograd's threads work while the main one waits inside `backward`."""
    thread: I32
    launched_ns: I64
    """min(call end, start of the work); ABSENT if unknown."""
    begun_ns: I64
    """When the launching call began; ABSENT if unknown."""


def link(trace: Trace, nesting: Nesting) -> Links:
    """Links every GPU event of the trace as far as the recording allows."""
    gpu, calls, ops = trace.gpu, trace.calls, trace.ops
    call = _by_correlation(trace)
    thread = np.full(len(gpu), -1, np.int32)
    begun = np.full(len(gpu), ABSENT)
    launched = np.full(len(gpu), ABSENT)
    linked = np.flatnonzero(call >= 0)
    thread[linked] = calls.thread[call[linked]]
    begun[linked] = calls.start_ns[call[linked]]
    launched[linked] = np.minimum(calls.end_ns[call[linked]], gpu.start_ns[linked])
    lost = np.flatnonzero(call < 0)
    if len(lost) and len(trace.flows):
        _by_flow(trace, lost, thread, begun, launched)
    scope = np.full(len(gpu), -1, np.int64)
    known = np.flatnonzero(begun != ABSENT)
    scope[known] = nesting.innermost(thread[known], begun[known])
    bare = known[scope[known] < 0]
    scope[bare] = around(trace, nesting, begun[bare])
    op = climb(scope, nesting.parent, ops.kind == OP)
    lost = np.flatnonzero(op < 0)
    if len(lost):
        found = _by_external(trace, lost)
        hit = found >= 0
        op[lost[hit]] = found[hit]
        scope[lost[hit & (scope[lost] < 0)]] = found[hit & (scope[lost] < 0)]
        fresh = lost[hit & (thread[lost] < 0)]
        thread[fresh] = ops.thread[op[fresh]]
    return Links(call, op, scope, thread, launched, begun)


def annotating_thread(trace: Trace) -> int:
    """The thread whose ranges cover most time, -1 without any: the one that the user's code runs on."""
    ops = trace.ops
    rows = np.flatnonzero((ops.kind == ANNOTATION) & (ops.end_ns > ops.start_ns))
    if not len(rows):
        return -1
    covered = np.bincount(ops.thread[rows], weights=(ops.end_ns - ops.start_ns)[rows])
    return int(covered.argmax())


def around(trace: Trace, nesting: Nesting, moment: I64) -> I64:
    """The innermost annotation that was open at each moment on the thread that annotates, or -1."""
    ops, thread = trace.ops, annotating_thread(trace)
    if thread < 0 or not len(moment):
        return np.full(len(moment), -1, np.int64)
    found = nesting.innermost(np.full(len(moment), thread, np.int32), moment)
    return climb_to_open(found, nesting.begun_in, ops.end_ns, moment, ops.kind == ANNOTATION)


def _by_correlation(trace: Trace) -> I64:
    """Row of the call with the same correlation id: of several, the last that began before the work did."""
    calls, gpu = trace.calls, trace.gpu
    usable = np.flatnonzero((calls.correlation != ABSENT) & (calls.correlation != 0))
    found = np.full(len(gpu), -1, np.int64)
    if not len(usable) or not len(gpu):
        return found
    # (correlation, rank of the start) as one number: the last call that began no later is the one before it.
    ids, times = distinct(calls.correlation[usable]), distinct(calls.start_ns[usable])
    width = len(times) + 1
    group = np.searchsorted(ids, calls.correlation[usable])
    keys = group * width + np.searchsorted(times, calls.start_ns[usable], side="right")
    order = np.argsort(keys, kind="stable")
    calls_in_order, keys = usable[order], keys[order]
    wanted = np.minimum(np.searchsorted(ids, gpu.correlation), len(ids) - 1)
    rows = np.flatnonzero(ids[wanted] == gpu.correlation)
    reach = wanted[rows] * width + np.searchsorted(times, gpu.start_ns[rows], side="right")
    pick = np.searchsorted(keys, reach, side="right") - 1
    # Where every call with the id began after the work did, clocks disagree: the first is the launch.
    first = np.searchsorted(keys, wanted[rows] * width)
    found[rows] = calls_in_order[np.maximum(pick, first)]
    return found


def _by_flow(trace: Trace, lost: I64, thread: I32, begun: I64, launched: I64) -> None:
    """Fills thread and times from the arrow that ends at the work's track and start."""
    flows, gpu = trace.flows, trace.gpu
    arrows = np.flatnonzero((flows.kind == FLOW_LAUNCH) & (flows.id != ABSENT))
    begins, ends = arrows[flows.begins[arrows] == 1], arrows[flows.begins[arrows] == 0]
    if not len(begins) or not len(ends):
        return
    # (time, track) as one number, by the rank of the time.
    times, tracks = np.unique(flows.time_ns[ends]), len(trace.threads)
    ends = ends[np.lexsort((flows.id[ends], flows.thread[ends], flows.time_ns[ends]))]
    keys = np.searchsorted(times, flows.time_ns[ends]) * tracks + flows.thread[ends]
    rank = np.minimum(np.searchsorted(times, gpu.start_ns[lost]), len(times) - 1)
    wanted = rank * tracks + gpu.thread[lost]
    k = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    arrow = np.where((keys[k] == wanted) & (times[rank] == gpu.start_ns[lost]), ends[k], -1)
    hit = np.flatnonzero(arrow >= 0)
    begins = begins[np.lexsort((flows.time_ns[begins], flows.id[begins]))]
    source = np.minimum(np.searchsorted(flows.id[begins], flows.id[arrow[hit]]), len(begins) - 1)
    source = begins[source]
    rows = lost[hit]
    good = (flows.id[source] == flows.id[arrow[hit]]) & (flows.time_ns[source] <= gpu.start_ns[rows])
    thread[rows[good]] = flows.thread[source[good]]
    begun[rows[good]] = launched[rows[good]] = flows.time_ns[source[good]]


def _by_external(trace: Trace, rows: I64) -> I64:
    """Row of the op that the work's External id names.

    Some recordings write the correlation id there instead (all of 2022's): then it names no op.
    """
    ops, gpu = trace.ops, trace.gpu
    external = gpu.external[rows]
    given = external != ABSENT
    if not given.any() or np.array_equal(external[given], gpu.correlation[rows][given]):
        return np.full(len(rows), -1, np.int64)
    usable = np.flatnonzero((ops.external != ABSENT) & (ops.external != 0) & (ops.kind == OP))
    order = usable[np.lexsort((ops.start_ns[usable], ops.external[usable]))]
    keys = ops.external[order]
    k = np.searchsorted(keys, external)
    found = np.full(len(rows), -1, np.int64)
    inside = np.flatnonzero(k < len(keys))
    same = inside[keys[k[inside]] == external[inside]]
    found[same] = order[k[same]]
    return found
