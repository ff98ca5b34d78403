"""Ops that do nothing but prepare a value which the CPU then reads: they go when the read goes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.tracefile.trace import I64, OP, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis


def preparing(case: Analysis, reads: I64) -> Mask:
    """Mask over ops: those that come directly before one of these reads, in the same op or module, and whose arguments
    are all small (lengths, bounds, counts of a batch). Empty where no shapes were recorded.

    `reads`: rows of the outermost ops that read a value. A reduction over large tensors is never taken: its result may
    be needed on the GPU as well.
    """
    ops, nesting = case.trace.ops, case.timeline.nesting.parent
    found = np.zeros(len(ops), bool)
    rows = np.flatnonzero(ops.kind == OP)
    parent = nesting[rows]
    order = np.lexsort((ops.start_ns[rows], parent, ops.thread[rows]))
    rows, parent = rows[order], parent[order]
    place = np.full(len(ops), -1, np.int64)
    place[rows] = np.arange(len(rows))
    known: dict[int, bool] = {}
    for read in reads[place[reads] >= 0].tolist():
        at = int(place[read]) - 1
        while at >= 0 and parent[at] == parent[at + 1] and ops.thread[rows[at]] == ops.thread[read]:
            row = int(rows[at])
            text = int(ops.dims[row])
            if text not in known:
                known[text] = _small(shapes_in(case, text))
            if not known[text] or found[row]:
                break
            found[row] = True
            at -= 1
    return found


def _small(shapes: list[tuple[int, ...] | None]) -> bool:
    """Whether there are tensors among the arguments, and each holds few values."""
    sizes = [math.prod(shape) for shape in shapes if shape is not None]
    return bool(sizes) and max(sizes) <= calibrated.SMALL_VALUES.value
