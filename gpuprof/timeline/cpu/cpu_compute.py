"""Ops that compute on tensors in host memory: an optimizer, a loss or a cast that the CPU runs itself.

An op of torch that launches nothing takes microseconds if it makes a view or looks something up. Another one that takes
longer at a stretch goes over numbers in host memory, and the GPU gets nothing from it until it is done. A list of views
may take as long, of tensors that are on the GPU.
"""

from __future__ import annotations

import math
import re

import numpy as np

from gpuprof.calibration import slow as calibrated
from gpuprof.timeline.cpu.slow_calls import UNKNOWN, slow_calls
from gpuprof.timeline.cpu.view_ops import NO_ELEMENTS
from gpuprof.timeline.intervals import EMPTY, Intervals, complement, join, union
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import I64, OP, Mask
from gpuprof.units import Assumed, Elements

FEWEST_ELEMENTS: Assumed[Elements] = 10_000
"""Fewest elements of a tensor on which an op that launches nothing takes time to compute."""
_LIBRARY = re.compile(r"^(?!autograd::|c10d::|torch::|cuda)\w+::")
"""Ops of torch and its extensions, such as `aten::add_`; none of autograd's, which call others."""
_SHAPE = re.compile(r"\[[\d, ]*\]")


@remembered
def computing(timeline: Timeline) -> Mask:
    """Rows of ops that compute on tensors in host memory: nothing in them launches, they take over 50 µs of their own,
    do more than return a view or memory, and have a large tensor where shapes were recorded."""
    trace, ops = timeline.trace, timeline.trace.ops
    found = (ops.kind == OP) & ~launching(timeline) & (_own_ns(timeline) >= calibrated.COMPUTES_NS.whole)
    found &= trace.rows_named(ops.name, lambda name: bool(_LIBRARY.match(name)) and name not in NO_ELEMENTS)
    slow = slow_calls(timeline)
    found[slow.op[slow.kind != UNKNOWN]] = False
    for dims in np.unique(ops.dims[found]).tolist():
        shapes = _SHAPE.findall(trace.text(int(dims)) or "")
        sizes = [math.prod(map(int, filter(None, text[1:-1].split(",")))) for text in shapes if text != "[]"]
        if sizes and max(sizes) < FEWEST_ELEMENTS:
            found &= ops.dims != dims
    return found


@remembered
def launching(timeline: Timeline) -> Mask:
    """Rows of ops that launch work of the GPU, or in which another does."""
    rows, parent = timeline.links.op, timeline.nesting.parent
    found = np.zeros(len(parent), bool)
    at = np.unique(rows[rows >= 0])
    while len(at):
        found[at] = True
        at = np.unique(parent[at])
        at = at[at >= 0]
        at = at[~found[at]]
    return found


def _own_ns(timeline: Timeline) -> I64:
    """Self time of ops, without nested ops, ns."""
    ops, parent = timeline.trace.ops, timeline.nesting.parent
    whole = (ops.end_ns - ops.start_ns).clip(0)
    children = np.flatnonzero(parent >= 0)
    return whole - np.bincount(parent[children], weights=whole[children], minlength=len(ops)).astype(np.int64)


def computing_spans(timeline: Timeline, thread: int) -> Intervals:
    """When a thread is in such ops, without the calls in them."""
    ops, calls = timeline.trace.ops, timeline.trace.calls
    rows = computing(timeline) & (ops.thread == thread)
    if not rows.any():
        return EMPTY
    spans = union(ops.start_ns[rows], ops.end_ns[rows])
    mine = calls.thread == thread
    low, high = int(spans.start[0]), int(spans.end[-1])
    within = mine & (calls.start_ns < high) & (calls.end_ns > low)
    inside = union(calls.start_ns[within].clip(low, high), calls.end_ns[within].clip(low, high))
    return complement(join(complement(spans, low, high), inside), low, high)


def computes(timeline: Timeline) -> str | None:
    """The phase with most of the CPU's computing; None if it never computes."""
    ops, (low, high) = timeline.trace.ops, timeline.window
    rows = np.flatnonzero(computing(timeline) & (ops.start_ns >= low) & (ops.start_ns < high))
    if not len(rows):
        return None
    ns = np.bincount(timeline.host.op[rows], weights=_own_ns(timeline)[rows].clip(0), minlength=len(PHASES))
    return PHASES[int(ns.argmax())]
