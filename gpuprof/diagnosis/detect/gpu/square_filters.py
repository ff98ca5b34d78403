"""Convolutions with a fixed square filter for each channel: blurs, and the windows of a structural similarity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.costs.arguments import parse
from gpuprof.costs.dtypes import element_bytes
from gpuprof.diagnosis.detect.passes import shapes_in, types_in
from gpuprof.replay.stretches import Stretches
from gpuprof.tracefile.trace import F64, I64, OP
from gpuprof.units import Assumed, Place, Published, Ratio

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

Shape = tuple[int, ...]
FORWARD: Published[dict[str, Place]] = {"aten::conv2d": 1, "aten::conv3d": 1, "aten::convolution": 1}
"""Op → place of the filter among its arguments."""
BACKWARD: Published[dict[str, Place]] = {"aten::convolution_backward": 2}
_ASKED: Published[Place] = 10
"""Place of [input, weight, bias] among the arguments of `convolution_backward`: which gradients are computed."""
LEAST_FEWER_TAPS: Assumed[Ratio] = 4.0
"""Least ratio of a filter's values to the sum of its sides: 4.5 for 9 × 9, 3.5 for 7 × 7, 8.3 for 5 × 5 × 5. Layers
that learn have smaller filters."""


@dataclass(frozen=True, slots=True)
class SquareFilters:
    """Calls of such convolutions, forward and backward; columns by call."""

    stretches: Stretches
    left: F64
    """Sum of the filter's sides / its number of values."""
    sides: I64
    """Number of sides: passes along one axis that replace it."""
    bytes: F64
    """Bytes of the tensor that is filtered."""
    largest: Shape
    """Sides of the largest filter."""
    same: int
    """Most calls of one step with the same shapes."""


def find_square_filters(case: Analysis) -> SquareFilters | None:
    """Convolutions of each channel with a filter of equal sides that gets no gradient in the window; None without any,
    or without shapes."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    inside = (ops.kind == OP) & (ops.start_ns >= low) & (ops.start_ns < high)
    forward = _filters(case, case.outermost(inside & case.ops_named(FORWARD.__contains__)), FORWARD)
    backward = _filters(case, case.outermost(inside & case.ops_named(BACKWARD.__contains__)), BACKWARD)
    trained = {shape for row, shape in backward.items() if _asks_for_the_filter(case, row)}
    calls = {row: shape for row, shape in (forward | backward).items() if shape not in trained}
    if not calls:
        return None
    rows = np.array(sorted(calls, key=lambda row: int(ops.start_ns[row])), np.int64)
    sides = [calls[row][2:] for row in rows.tolist()]
    step = np.searchsorted(case.timeline.steps.start_ns, ops.start_ns[rows], side="right")
    keys = np.stack([step, ops.name[rows].astype(np.int64), ops.dims[rows].astype(np.int64)])
    return SquareFilters(
        Stretches.of(ops, rows),
        np.array([sum(one) / math.prod(one) for one in sides]),
        np.array([len(one) for one in sides], np.int64),
        np.array([_bytes(case, row) for row in rows.tolist()]),
        max(sides, key=math.prod),
        int(np.unique(keys, axis=1, return_counts=True)[1].max()),
    )


def _filters(case: Analysis, rows: I64, place: dict[str, Place]) -> dict[int, Shape]:
    """Row → shape of the filter, of calls with one of equal sides for each channel."""
    found, known = dict[int, Shape](), dict[tuple[int, int], Shape | None]()
    ops = case.trace.ops
    for row in rows.tolist():
        key = int(ops.name[row]), int(ops.dims[row])
        if key not in known:
            at = place[case.trace.strings[key[0]]]
            shapes = shapes_in(case, key[1])
            known[key] = shapes[at] if at < len(shapes) else None
        shape = known[key]
        if shape and len(shape) >= 4 and shape[1] == 1 and _is_square(shape[2:]):
            found[row] = shape
    return found


def _is_square(sides: Shape) -> bool:
    return len(set(sides)) == 1 and math.prod(sides) >= LEAST_FEWER_TAPS * sum(sides)


def _asks_for_the_filter(case: Analysis, row: int) -> bool:
    """Whether a backward pass computes the filter's gradient; it may where that was not recorded."""
    given = parse("", "[]", None, None, case.trace.text(int(case.trace.ops.concrete[row]))).text(_ASKED)
    asked = [word.strip(" []") for word in given.split(",")]
    return len(asked) < 2 or asked[1] != "False"


def _bytes(case: Analysis, row: int) -> float:
    """Bytes of the first tensor of a call: the picture, or its gradient."""
    shapes, types = shapes_in(case, int(case.trace.ops.dims[row])), types_in(case, row)
    return float(math.prod(shapes[0] or ()) * ((element_bytes(types[0]) if types else None) or 4))
