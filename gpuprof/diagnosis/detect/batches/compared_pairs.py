"""A function without trained weights that is called on one tensor and then on another, whose results are compared.

Spectra, features and statistics of what a model made and of what was wanted. The two calls are the same ops on the same
shapes, one after the other, directly before the comparison. In a stack of layers each block begins with what the block
before it returned; here both begin with a tensor that is none of the results.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.batches.separate_passes import SeparatePasses
from gpuprof.diagnosis.detect.loops.layer_ops import ATTENTION, CELLS, CONVOLUTIONS, NORMS, RECURRENT_LAYERS
from gpuprof.diagnosis.detect.loops.recurrent_loops import outermost_forward
from gpuprof.diagnosis.detect.passes import backward_of, shapes_in
from gpuprof.replay.stretches import Stretches
from gpuprof.tracefile.trace import I64, Mask
from gpuprof.units import Assumed, Convention, Entries, Ops, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

Shape = tuple[int, ...]
FEWEST_NAMES: Assumed[Ops] = 8
"""Fewest different ops of a call: fewer are a cast and a norm."""
MOST_OPS: Assumed[Ops] = 2048
"""Most ops of one call."""
MOST_TRIED: Convention[Entries] = 4
"""Most lengths of a call that are tried: more of them come from short rounds of a loop."""
INPUT_SHARE: Assumed[Share] = 0.5
"""Smallest size of a tensor that a call takes before any of its result's shape, relative to that result: its input. A
layer that takes the result of the layer before it has none."""
COMPARES = frozenset(
    f"aten::{name}" for name in ("l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss", "sub", "cosine_similarity")
)
BROADCAST = "aten::broadcast_tensors"
"""What losses do first."""
_LAYERS = (
    CONVOLUTIONS
    | NORMS
    | RECURRENT_LAYERS
    | {"aten::linear", "aten::addmm", "aten::embedding", "aten::convolution", "aten::dropout", ATTENTION, *CELLS}
)
"""Ops with weights: two models of the same structure, of which one is a teacher, run the same ops. And random ones."""


def find_compared_pairs(case: Analysis) -> SeparatePasses | None:
    """Pairs of calls in the window, of which the one with a backward pass is the first place; None if there are
    none."""
    ops, strings = case.trace.ops, case.trace.strings
    rows = outermost_forward(case)
    if not len(rows):
        return None
    _, keys = np.unique(np.stack([ops.name[rows], ops.dims[rows]]), axis=1, return_inverse=True)
    names = [strings[i] for i in ops.name[rows].tolist()]
    blocked = np.array([name in _LAYERS for name in names], bool)
    found: list[tuple[int, int]] = []
    for compared in (at for at, name in enumerate(names) if name in COMPARES):
        at = compared - (names[compared - 1] == BROADCAST)
        length = _length(case, rows, keys.ravel(), blocked, at, compared)
        if length and (not found or at - 2 * length >= found[-1][0]):
            found.append((at, length))
    if not found:
        return None
    spans = [(at - number * length - length, at - number * length) for at, length in found for number in (1, 0)]
    thread, start, end = (
        np.array(each, np.int64) for each in zip(*(_span(case, rows, *one) for one in spans), strict=True)
    )
    stretches = Stretches(thread, start, end)
    backward = backward_of(case, stretches)
    has = (backward.end_ns > backward.start_ns).reshape(-1, 2)
    if not has.any(axis=1).all():
        return None
    place = np.tile([0, 1], len(found))
    only_second = ~has[:, 0]
    place.reshape(-1, 2)[only_second] = [1, 0]
    return SeparatePasses(stretches, place, 2, backward, True)


def _length(case: Analysis, rows: I64, keys: I64, blocked: Mask, at: int, compared: int) -> int:
    """Ops of each of the two calls that end before position `at`, whose results are compared; 0 if there are no
    two."""
    ops, strings = case.trace.ops, case.trace.strings
    given = shapes_in(case, int(ops.dims[rows[compared]]))[:2]
    if at < 2 * FEWEST_NAMES or len(given) < 2 or not given[0] or given[0] != given[1]:
        return 0
    for length in _distances(keys, at)[:MOST_TRIED]:
        one, other = slice(at - 2 * length, at - length), slice(at - length, at)
        if (keys[one] != keys[other]).any() or blocked[other].any():
            continue
        same = len({strings[i] for i in ops.name[rows[other]].tolist()}) >= FEWEST_NAMES
        if same and (ops.thread[rows[one]] == ops.thread[rows[at]]).all() and _has_input(case, rows[other], given[0]):
            return length
    return 0


def _distances(keys: I64, at: int) -> list[int]:
    """Distances from the last ops before position `at` to the same ones before, the shortest first."""
    low = max(at - MOST_OPS, FEWEST_NAMES)
    ends = np.arange(low, at - FEWEST_NAMES + 1)
    for back in range(1, FEWEST_NAMES + 1):
        ends = ends[keys[ends - back] == keys[at - back]]
    distances = at - ends[::-1]
    return distances[2 * distances <= at].tolist()


def _has_input(case: Analysis, rows: I64, result: Shape) -> bool:
    """Whether a call takes a large tensor before any of its result's shape."""
    for row in rows.tolist():
        shapes = [shape for shape in shapes_in(case, int(case.trace.ops.dims[row])) if shape]
        if result in shapes:
            return False
        if any(math.prod(shape) >= INPUT_SHARE * math.prod(result) for shape in shapes):
            return True
    return False


def _span(case: Analysis, rows: I64, first: int, end: int) -> tuple[int, int, int]:
    """(thread, start, end) of some ops, with the Python before them."""
    ops, thread = case.trace.ops, int(case.trace.ops.thread[rows[first]])
    before = first - 1 if first and int(ops.thread[rows[first - 1]]) == thread else first
    begin = int(ops.end_ns[rows[before]]) if before < first else int(ops.start_ns[rows[first]])
    return thread, begin, int(ops.end_ns[rows[end - 1]])
