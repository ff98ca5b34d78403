"""Ops that only prepare a value which the CPU then reads: they disappear together with the read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.replay.stretches import Stretches
from gpuprof.tracefile.trace import I64, OP

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis


LISTS = '"TensorList"'
"""Type of an argument that is a list of tensors."""


def preparations(case: Analysis, reads: I64) -> Stretches:
    """For each read, the stretch of CPU time from the first op that only prepares it, or from the read itself, to its
    end, including Python in between.

    An op prepares a read if it comes directly before it in the same op or module, and all its arguments are small
    (lengths, bounds, counts of a batch). Reductions over large tensors do not count, since their result may also be
    needed on the GPU, and neither do ops on lists of tensors, since recordings leave out the sizes of long lists.
    `reads`: rows of the outermost ops that read a value. Without recorded shapes there are no preparing ops."""
    ops, nesting = case.trace.ops, case.timeline.nesting.parent
    reads = reads[np.argsort(ops.start_ns[reads], kind="stable")]
    first = reads.copy()
    rows = np.flatnonzero(ops.kind == OP)
    parent = nesting[rows]
    order = np.lexsort((ops.start_ns[rows], parent, ops.thread[rows]))
    rows, parent = rows[order], parent[order]
    place = np.full(len(ops), -1, np.int64)
    place[rows] = np.arange(len(rows))
    known: dict[tuple[int, int], bool] = {}
    for number in np.flatnonzero(place[reads] >= 0).tolist():
        read = int(reads[number])
        at = int(place[read]) - 1
        while at >= 0 and parent[at] == parent[at + 1] and ops.thread[rows[at]] == ops.thread[read]:
            row = int(rows[at])
            text = int(ops.dims[row]), int(ops.types[row])
            if text not in known:
                lists = LISTS in (case.trace.text(text[1]) or "")
                known[text] = not lists and _small(shapes_in(case, text[0]))
            if not known[text] or (number and ops.start_ns[row] <= ops.start_ns[reads[number - 1]]):
                break
            first[number] = row
            at -= 1
    return Stretches(ops.thread[reads].astype(np.int64), ops.start_ns[first], ops.end_ns[reads])


def _small(shapes: list[tuple[int, ...] | None]) -> bool:
    """Whether there are tensors among the arguments, and all are small."""
    sizes = [math.prod(shape) for shape in shapes if shape is not None]
    return bool(sizes) and max(sizes) <= calibrated.SMALL_VALUES.value
