"""Forward passes that are recomputed in the backward pass, and the free memory to store them instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import recompute as calibrated
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import BACKWARD, CHECKPOINT, RECOMPUTE
from gpuprof.tracefile.distinct import ordered
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE, I64, OP, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis


def recomputed(case: Analysis) -> Mask:
    """Nodes of the recomputed forward passes, including Python between their ops."""
    timeline = case.timeline
    ops, phase = case.trace.ops, timeline.host.op
    again = (phase == RECOMPUTE) & (ops.kind == OP)
    nodes = case.graph.phase == RECOMPUTE
    if not again.any():
        return nodes
    # The ops that contain a recomputation: everything from the first to the last recomputed op inside belongs to it.
    parent = timeline.nesting.parent
    rows = np.flatnonzero(again)
    around = climb(parent[rows], parent, (phase != RECOMPUTE) & (ops.kind == OP))
    rows, around = rows[around >= 0], around[around >= 0]
    rows, around = rows[phase[around] == BACKWARD], around[phase[around] == BACKWARD]
    # A backward pass between two recomputed stretches of one op belongs to neither: a loss that encodes its batch in
    # parts runs one after each.
    engine = case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE))
    passed = np.zeros(len(rows), np.int64)
    for thread in np.unique(ops.thread[rows]).tolist():
        mine = ops.thread[rows] == thread
        passed[mine] = np.searchsorted(ordered(ops.start_ns[engine & (ops.thread == thread)]), ops.start_ns[rows[mine]])
    pairs, which = np.unique(np.stack([around, passed]), axis=1, return_inverse=True)
    owner, which = pairs[0], which.ravel()
    if not len(owner):
        return nodes
    start, end = np.full(len(owner), np.iinfo(np.int64).max), np.zeros(len(owner), np.int64)
    np.minimum.at(start, which, ops.start_ns[rows])
    np.maximum.at(end, which, ops.end_ns[rows])
    start, end = _with_its_python(case, owner, start, end)
    inside = nodes_in(case.graph, Stretches(ops.thread[owner].astype(np.int64), start, end)) >= 0
    return nodes | (inside & (case.graph.phase == BACKWARD))


def _with_its_python(case: Analysis, owner: I64, start: I64, end: I64) -> tuple[I64, I64]:
    """The stretches, with those in a checkpoint's own function extended from its beginning, where it restores the
    random state and detaches inputs, to the first op of the backward pass that it starts. Others stay as they are: the
    op that requested the first saved tensor has work of its own."""
    ops, phase = case.trace.ops, case.timeline.host.op
    own = owner[case.ops_named(CHECKPOINT.search)[owner]]
    nested = (ops.kind == OP) & (phase == BACKWARD)
    start, end = start.copy(), end.copy()
    for thread in np.unique(ops.thread[own]).tolist():
        mine = np.isin(owner, own[ops.thread[own] == thread])
        begins = np.append(ordered(ops.start_ns[nested & (ops.thread == thread)]), np.iinfo(np.int64).max)
        following = begins[np.searchsorted(begins, end[mine])]
        start[mine], end[mine] = ops.start_ns[owner[mine]], np.minimum(following, ops.end_ns[owner[mine]])
    return start, end


def free_bytes(case: Analysis) -> tuple[float | None, float | None]:
    """(memory that a training could still use, memory of the GPU), bytes; None if unknown."""
    size = next((float(info.memory_bytes) for info in case.trace.meta.gpus if info.memory_bytes), None)
    peak = case.run.memory.peak_bytes if case.run else None
    return (calibrated.USABLE_SHARE.value * size - peak if size is not None and peak is not None else None), size
