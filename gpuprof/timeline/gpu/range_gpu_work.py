"""Ranges projected onto the GPU: the time of the work that was launched inside each.

A range owns what its own thread launched in it, and what a thread without ranges of its own launched while it was open:
PyTorch's engine runs a backward pass on threads of its own, so by threads alone a range around `loss.backward()` would
be empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.timeline.links import annotating_thread, around
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.distinct import distinct
from gpuprof.tracefile.trace import ABSENT, ANNOTATION, I64


@dataclass(frozen=True, slots=True)
class RangeGpuWork:
    """Per range of the window, by start."""

    row: I64
    """Row of the annotation in `ops`."""
    events: I64
    """Kernels and copies launched in it, including those of nested ranges."""
    gpu_ns: I64
    """Sum of their durations, ns."""
    busy_ns: I64
    """Time in which any of them ran, ns."""


def project(timeline: Timeline) -> RangeGpuWork:
    """All annotations that begin in the window, and the work launched in it."""
    trace = timeline.trace
    ops, gpu, (low, high) = trace.ops, trace.gpu, timeline.window
    ranges = np.flatnonzero((ops.kind == ANNOTATION) & (ops.start_ns >= low) & (ops.start_ns < high))
    ranges = ranges[np.argsort(ops.start_ns[ranges], kind="stable")]
    number = np.full(len(ops) + 1, -1, np.int64)
    number[ranges] = np.arange(len(ranges))
    work = np.arange(len(gpu))
    owner = _owners(timeline)
    owners, owned = [], []
    while True:
        work, owner = work[owner >= 0], owner[owner >= 0]
        if not len(work):
            break
        begun = timeline.links.begun_ns[work]
        # Ranges that are begun and ended in different places may outlast the one around them, or the window: the
        # profiler stops in a hook of the last optimizer step.
        still = (begun == ABSENT) | (np.minimum(trace.ops.end_ns[owner], high) > begun)
        owners.append(number[owner[still]])
        owned.append(work[still])
        owner = _outer(timeline, owner)
    which = np.concatenate([*owners, np.empty(0, np.int64)])
    rows = np.concatenate([*owned, np.empty(0, np.int64)])
    rows, which = rows[which >= 0], which[which >= 0]
    return _summed(ranges, which, gpu.start_ns[rows], np.maximum(gpu.end_ns[rows], gpu.start_ns[rows]))


def _outer(timeline: Timeline, inner: I64) -> I64:
    """The annotation around each annotation; for the outermost on another thread, the one that the user's code was
    in."""
    trace, nesting = timeline.trace, timeline.nesting
    ops = trace.ops
    outer = climb(nesting.begun_in[inner], nesting.begun_in, ops.kind == ANNOTATION)
    lost = np.flatnonzero((outer < 0) & (ops.thread[inner] != annotating_thread(trace)))
    outer[lost] = around(trace, nesting, ops.start_ns[inner[lost]])
    return outer


def _owners(timeline: Timeline) -> I64:
    """The innermost annotation that each kernel or copy belongs to, or -1."""
    trace, links, nesting = timeline.trace, timeline.links, timeline.nesting
    ops = trace.ops
    owner = climb(links.scope, nesting.begun_in, ops.kind == ANNOTATION)
    lost = np.flatnonzero((owner < 0) & (links.begun_ns != ABSENT))
    owner[lost] = around(trace, nesting, links.begun_ns[lost])
    return owner


def _summed(ranges: I64, which: I64, start: I64, end: I64) -> RangeGpuWork:
    """Sums per range of the events [start, end), `which` being the range of each."""
    order = np.lexsort((start, which))
    which, start, end = which[order], start[order], end[order]
    count = len(ranges)
    events = np.bincount(which, minlength=count).astype(np.int64)
    gpu, busy = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.add.at(gpu, which, end - start)
    if len(which):
        # Moments by their rank, with a separate stretch of numbers for each range: then one running maximum serves all
        # ranges, and no number exceeds 64 bits.
        moments = distinct(np.concatenate([start, end]))
        shift = which * len(moments)
        last = np.maximum.accumulate(np.searchsorted(moments, end) + shift)
        before = np.concatenate([[-1], last[:-1]]) - shift  # negative: of another range
        reach = np.where(before >= 0, moments[before.clip(0)], start)
        np.add.at(busy, which, np.maximum(end - np.maximum(start, reach), 0))
    return RangeGpuWork(ranges, events, gpu, busy)
