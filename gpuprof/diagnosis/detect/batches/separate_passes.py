"""A model that is called several times before one backward pass, each time on other inputs.

Such passes are found in the ops alone: each begins with reading what only a batch has (indices that are embedded, or
pictures of a few channels), so none takes the result of the one before as its batch, and each has the same ops in the
same order. A stack of layers repeats ops as well, but embeds once. Two models of the same structure (two towers)
accumulate twice the gradients: each of their weights gets its own. Discriminators of one
structure that judge real and generated samples at several scales are called twice each, on a shape of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuprof.diagnosis.detect.batches.model_calls import (
    EMBEDDING,
    FEWEST_MATMULS,
    SAME_OPS,
    before_each_backward,
    beginnings,
    records_gradients,
    returns_pictures,
    same_from_start,
)
from gpuprof.diagnosis.detect.loops.layer_ops import CELLS, CONVOLUTIONS, MATMULS, RECURRENT_LAYERS
from gpuprof.diagnosis.detect.loops.recurrent_loops import outermost_forward
from gpuprof.diagnosis.detect.passes import backward_of, shapes_in
from gpuprof.projection.changes.batch import ACCUMULATE
from gpuprof.record.phases.phase_names import REPEATED_RANGE
from gpuprof.replay.stretches import Stretches
from gpuprof.tracefile.trace import I64
from gpuprof.units import Assumed, Ratio

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

ONE_MODEL: Assumed[Ratio] = 1.5
"""Most gradients that are accumulated for each weight of a pass: two models have 2."""
WEIGHTS = {
    "aten::linear": (1, 2), EMBEDDING: (0,), "aten::layer_norm": (2, 3), "aten::batch_norm": (1, 2),
    "aten::rms_norm": (2,), "aten::group_norm": (2, 3), **dict.fromkeys(sorted(CONVOLUTIONS), (1, 2)),
}  # fmt: skip
"""Op → places of its weights among its arguments."""
RECURRENT = frozenset(CELLS) | RECURRENT_LAYERS


class SeparatePasses(NamedTuple):
    """Passes as stretches of CPU time; columns by pass."""

    stretches: Stretches
    place: I64
    """Of a pass among those before the same backward pass, from 0."""
    passes: int
    """Passes before each backward pass."""
    backward: Stretches
    alike: bool
    """Whether all passes have inputs of the same shape."""


def find_separate_passes(case: Analysis) -> SeparatePasses | None:
    """Passes of the window; None where a model is called once, or where calls may need each other."""
    if case.ops_named(lambda name: name.startswith(REPEATED_RANGE)).any():
        return None  # the same inputs again: another finding
    rows = outermost_forward(case)
    if not len(rows):
        return None
    found = [_of_interval(case, part) for _, part in before_each_backward(case, rows)]
    of_some = [one for one in found if one is not None]
    counts = {len(one) for one in of_some}
    if len(counts) != 1:
        return None
    pairs = [pair for one in of_some for pair in one]
    first, last = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])
    ops = case.trace.ops
    stretches = Stretches.of(ops, first, last)
    backward = backward_of(case, stretches)
    if not (backward.thread >= 0).all():
        return None
    shapes = [
        np.unique(one, return_inverse=True, return_counts=True) for one in np.split(ops.dims[first], len(of_some))
    ]
    models, kinds = _models(case, rows, stretches, len(of_some)), len(np.unique(ops.dims[first]))
    if models == 1:
        count = counts.pop()
        return SeparatePasses(stretches, np.tile(np.arange(count), len(of_some)), count, backward, kinds == 1)
    # Models of one structure, each called on several inputs of a shape of its own.
    times = {int(count) for _, _, each in shapes for count in each}
    if models != kinds or len(times) != 1 or times == {1}:
        return None
    places = [_places(which) for _, which, _ in shapes]
    return SeparatePasses(stretches, np.concatenate(places), times.pop(), backward, True)


def _places(kinds: I64) -> I64:
    """Place of each pass among those of its kind, from 0."""
    return np.array([int((kinds[:at] == kind).sum()) for at, kind in enumerate(kinds)], np.int64)


def _of_interval(case: Analysis, rows: I64) -> list[tuple[int, int]] | None:
    """(first, last op) of each pass of an interval; None where there are not several of the same ops."""
    ops, strings = case.trace.ops, case.trace.strings
    begins = beginnings(case, rows)
    if len(begins) < 2:
        return None
    ends = [*begins[1:], len(rows)]
    # Those of a teacher or a reference model run without gradients.
    recorded = [records_gradients(case, rows[at:end]) for at, end in zip(begins, ends, strict=True)]
    least = min((end - at for at, end, own in zip(begins, ends, recorded, strict=True) if own), default=0)
    begins = [at for at, own in zip(begins, recorded, strict=True) if own]
    if len(begins) < 2:
        return None
    names = ops.name[rows].astype(np.int64)
    pieces = [names[at : at + least] for at in begins]
    length = min(same_from_start(pieces[0], piece) for piece in pieces[1:])
    if length < SAME_OPS * least:
        return None
    first = rows[begins[0] : begins[0] + length].tolist()
    kinds = [strings[int(ops.name[row])] for row in first]
    if any(returns_pictures(case, row, rows[begins[0]]) for row in first[1:]):
        return None  # a frame that is predicted may be the next one's input
    if sum(kind in MATMULS or kind in CONVOLUTIONS for kind in kinds) < FEWEST_MATMULS or RECURRENT & set(kinds):
        return None
    return [(int(rows[at]), int(rows[at + length - 1])) for at in begins]


def _models(case: Analysis, rows: I64, stretches: Stretches, intervals: int) -> int:
    """How many models of this structure run, by the number of gradients that autograd accumulates; 0 if unknown."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    inside = (ops.start_ns >= low) & (ops.start_ns < high)
    accumulated = int((case.ops_named(ACCUMULATE.__eq__) & inside).sum())
    start, end = int(stretches.start_ns[0]), int(stretches.end_ns[0])
    mine = rows[(ops.start_ns[rows] >= start) & (ops.end_ns[rows] <= end)]
    weights = sum(_weights(case, row) for row in mine.tolist()) * intervals
    if not accumulated or not weights:
        return 0
    return 1 if accumulated <= ONE_MODEL * weights else round(accumulated / weights)


def _weights(case: Analysis, row: int) -> int:
    """Weights that an op is given."""
    places: Sequence[int] = WEIGHTS.get(case.trace.strings[int(case.trace.ops.name[row])], ())
    shapes = shapes_in(case, int(case.trace.ops.dims[row])) if places else []
    return sum(bool(shapes[at]) for at in places if at < len(shapes))
