"""How a recorded loss computes logits: all rows of a pass at once, in chunks, or never a whole row."""

from __future__ import annotations

import itertools

import numpy as np

from gpuprof.costs.formulas.gemm import is_matmul
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.projection.memory.activations import Loss
from gpuprof.tracefile.trace import NO_TEXT
from gpuprof.units import Assumed, Rows

CHOSEN_MULTIPLE: Assumed[Rows] = 64
"""Chunks of a configured size have a multiple of this many rows; chunks from dividing a pass into N parts rarely do."""


def loss_of(case: Analysis, vocabulary: int, tokens: float, passes: float) -> Loss | None:
    """How the step's matmuls with the vocabulary as width were chunked; None if no shapes were recorded.

    tokens: of the longest pass in the window; passes: number of passes in the window.
    """
    ops = case.trace.ops
    if not vocabulary or tokens <= 0 or not (ops.dims != NO_TEXT).any():
        return None
    rows = _matmul_rows(case, vocabulary)
    if not rows:
        return Loss(vocabulary, 0.0)
    most = max(rows)
    # Chunks of a fixed size leave a smaller one at the end of a pass.
    fixed = len(rows) > passes and most % CHOSEN_MULTIPLE == 0 and min(rows) < most
    return Loss(vocabulary, min(most / tokens, 1.0), most if fixed else None)


def _matmul_rows(case: Analysis, vocabulary: int) -> list[int]:
    """Rows of each matmul [rows, width] · [width, vocabulary] that ran on the GPU in the window."""
    timeline, ops = case.timeline, case.trace.ops
    op = np.unique(timeline.links.op[timeline.members])
    op = op[op >= 0]
    op = op[ops.dims[op] != NO_TEXT]
    op = op[case.ops_named(is_matmul)[op]]
    found = []
    for row in op.tolist():
        tensors = [shape for shape in shapes_in(case, int(ops.dims[row])) if shape and len(shape) > 1]
        for left, right in itertools.pairwise(tensors):
            # Weights are stored as [vocabulary, width]; a linear layer takes them like that, a matmul takes them
            # transposed.
            if left[-1] == right[0] and right[-1] == vocabulary != left[-1]:
                found.append(int(np.prod(left[:-1])))
                break
    return found
