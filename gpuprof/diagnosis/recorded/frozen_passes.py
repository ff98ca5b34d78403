"""Forward passes that train nothing: whole modules that run in a step without a backward pass.

An op of the forward pass carries the sequence number of the autograd node that it may create; the backward pass repeats
the number. While no node is created, because gradients are off or no weight or input needs one, the number does not
advance and many ops share it: the node belongs to the last of them.

The same happens in the frozen layers of a model whose later layers are trained. This module looks for separate modules
(an image or text encoder, a reference model, a teacher), so it needs a recording that has modules: Python frames, or
the `forward` range that `gpuprof trace` puts around the trained model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.replay.stretches import Stretches, place
from gpuprof.timeline.categories import CATEGORIES, TENSOR_CATEGORIES
from gpuprof.timeline.frames import MODULE, FrameIndex, module_class
from gpuprof.timeline.intervals import union
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import DATA, FORWARD
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.distinct import distinct
from gpuprof.tracefile.trace import ANNOTATION, I64, OP, Mask
from gpuprof.units import Assumed, Calls

TRAINED = "forward"
"""The range that `gpuprof trace` puts around each call of the trained model."""
FEWEST_LAYERS: Assumed[Calls] = 4
"""Fewest matrix multiplications, convolutions and attentions of a model's pass; fewer are a metric or a projection."""


@dataclass(frozen=True, slots=True)
class FrozenPasses:
    """Forward passes without a backward pass, on the main thread, in order of time; columns of one length."""

    calls: Stretches
    """Spans of the modules; if modules were not recorded, everything between known passes."""
    stretches: Stretches
    """From the first to the last matrix multiplication, convolution or attention, if only that is known."""
    of_trained: Mask
    """Whether the module's class is also trained: a reference, a teacher, or the model without its adapters."""
    trained: int
    """Number of passes in the window that do have a backward pass."""

    def __len__(self) -> int:
        return len(self.stretches)


def find_frozen_passes(timeline: Timeline) -> FrozenPasses | None:
    """The window's passes that train nothing; None if the recording has no modules or no backward pass."""
    node = _with_backward(timeline)
    if not node.any():
        return None
    start, end, name = _module_frames(timeline)
    known = np.ones(len(start), bool)
    if not len(start):
        start, end, name, known = _around_ranges(timeline)
    if not len(start):
        return None
    low, high = timeline.window
    start, end = np.maximum(start, low), np.minimum(end, high)
    passes = Stretches(np.full(len(start), timeline.main_thread, np.int64), start, end)
    ops = timeline.trace.ops
    first, last, count = _tensor_work(timeline, passes)
    # Between known passes there can be a frozen pass, and before or after it a loss of the trained model.
    first, last = np.where(known, start, first), np.where(known, end, np.maximum(first, last))
    where = place(Stretches(passes.thread, first, last), ops.thread[node].astype(np.int64), ops.start_ns[node])
    trains = np.bincount(where[where >= 0], minlength=len(start)) > 0
    frozen = ~trains & (count >= FEWEST_LAYERS)
    thread = passes.thread[frozen]
    return FrozenPasses(
        Stretches(thread, start[frozen], end[frozen]),
        Stretches(thread, first[frozen], last[frozen]),
        np.isin(name[frozen], np.unique(name[trains & known])),
        int(np.count_nonzero(trains & known)),
    )


def _with_backward(timeline: Timeline) -> Mask:
    """Forward ops of the main thread whose autograd node runs in the backward pass."""
    ops = timeline.trace.ops
    again = distinct(ops.sequence[(ops.sequence >= 0) & (ops.forward_thread > 0)])
    found = np.zeros(len(ops), bool)
    rows = np.flatnonzero(
        (ops.kind == OP) & (ops.sequence >= 0) & (ops.forward_thread <= 0) & (ops.thread == timeline.main_thread)
    )
    rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    number = ops.sequence[rows]
    owns = np.append(number[1:] != number[:-1], True)[: len(rows)]
    found[rows[owns & np.isin(number, again)]] = True
    return found


def _module_frames(timeline: Timeline) -> tuple[I64, I64, I64]:
    """(starts, ends, classes) of the window's outermost modules among the main thread's Python frames."""
    trace, (low, high) = timeline.trace, timeline.window
    frames = trace.frames
    modules = trace.rows_named(frames.name, lambda text: text.startswith(MODULE))
    modules &= (frames.thread == timeline.main_thread) & (frames.start_ns < high) & (frames.end_ns > low)
    if modules.any():
        modules &= FrameIndex(trace, timeline.nesting).module_parents()[0] < 0
    rows = np.flatnonzero(modules)
    rows = rows[np.argsort(frames.start_ns[rows], kind="stable")]
    classes = {text: i for i, text in enumerate(sorted({module_class(trace.strings[i]) for i in frames.name[rows]}))}
    name = np.array([classes[module_class(trace.strings[i])] for i in frames.name[rows].tolist()], np.int64)
    return frames.start_ns[rows], frames.end_ns[rows], name


def _around_ranges(timeline: Timeline) -> tuple[I64, I64, I64, Mask]:
    """(starts, ends, classes, known): the calls of the trained model, and the stretches of the main thread outside
    them, the data, the backward pass and the optimizer, which may be calls of another module."""
    ops, (low, high) = timeline.trace.ops, timeline.window
    empty = np.empty(0, np.int64)
    mine = (ops.thread == timeline.main_thread) & (ops.start_ns < high) & (ops.end_ns > low)
    ranges = mine & (ops.kind == ANNOTATION)
    named = ranges & timeline.trace.rows_named(ops.name, lambda text: text == TRAINED)
    if not named.any():
        return empty, empty, empty, np.empty(0, bool)
    parent = timeline.nesting.parent
    rows = np.flatnonzero(named)
    rows = rows[climb(parent[rows], parent, named) < 0]
    rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    host = timeline.host
    data = mine & (host.op == DATA)
    taken = union(
        np.concatenate([ops.start_ns[rows], host.backward.start, host.optimizer.start, ops.start_ns[data]]),
        np.concatenate([ops.end_ns[rows], host.backward.end, host.optimizer.end, ops.end_ns[data]]),
    )
    steps = timeline.steps
    cuts = np.unique(np.concatenate([[low, high], steps.start_ns, steps.end_ns, taken.start, taken.end]))
    begins, ends = cuts[:-1], cuts[1:]
    at = np.searchsorted(taken.start, begins, side="right") - 1
    free = (at < 0) | (begins >= taken.end[np.maximum(at, 0)])
    start = np.concatenate([ops.start_ns[rows], begins[free]])
    end = np.concatenate([ops.end_ns[rows], ends[free]])
    known = np.arange(len(start)) < len(rows)
    order = np.argsort(start, kind="stable")
    return start[order], end[order], np.where(known, 0, -1)[order], known[order]


def _tensor_work(timeline: Timeline, passes: Stretches) -> tuple[I64, I64, I64]:
    """(start of the first, end of the last, number) per pass of ops that launch matmuls, convolutions or attention."""
    ops, links, parent = timeline.trace.ops, timeline.links, timeline.nesting.parent
    tensor = np.isin(timeline.category, [CATEGORIES.index(name) for name in TENSOR_CATEGORIES])
    op = links.op[tensor & (links.op >= 0) & (timeline.phase == FORWARD)]
    outer = climb(op, parent, (parent < 0) | (ops.kind[parent] != OP))
    where = place(passes, ops.thread[outer].astype(np.int64), ops.start_ns[outer])
    outer, where = outer[where >= 0], where[where >= 0]
    first, last = passes.end_ns.copy(), passes.start_ns.copy()
    np.minimum.at(first, where, ops.start_ns[outer])
    np.maximum.at(last, where, ops.end_ns[outer])
    return first, last, np.bincount(where, minlength=len(passes))
