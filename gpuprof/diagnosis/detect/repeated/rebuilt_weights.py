"""Weights that each forward pass rebuilds from small factors: adapters that are added to a full weight.

They are matmuls over a short inner dimension whose result has the shape of a weight, that is, of something that the
forward pass multiplies activations with. Adapters that are applied to activations have results of the activations'
shape.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.timeline.phases import FORWARD, RECOMPUTE
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import I64, OP, Mask
from gpuprof.units import Assumed, Elements, Place, Published, Times

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

Shape = tuple[int, ...]
_FACTORS: Published[dict[str, tuple[Place, Place]]] = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
}
"""Matmul ops → positions of the two arguments that are multiplied."""
_WEIGHTS: Published[dict[str, tuple[Place, Place]]] = _FACTORS | {"aten::_grouped_mm": (0, 1)}
_AROUND = frozenset({"aten::add", "aten::add_", "aten::mul", "aten::mul_", "aten::copy_", "aten::div", "aten::sub"})
"""Ops that add a matmul's result to the weight or scale it, and do the same to its gradient."""
_SCORES = frozenset({"aten::_softmax", "aten::softmax"})
"""Ops on attention scores, which are also matmuls over a short dimension, multiplied with values."""
THIN_RATIO: Assumed[Times] = 4
"""Smallest ratio of the result's smaller dimension to the inner dimension, which is an adapter's rank."""
FEWEST_ELEMENTS: Assumed[Elements] = 1_000_000
"""Smallest result, in elements, that takes longer to build than to launch."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Weights that are built in each forward pass."""

    shapes: tuple[Shape, ...]
    """Shapes of the weights, with the last two dimensions ascending."""
    per_step: float
    """Weights rebuilt per step."""
    built: Mask
    """GPU nodes: matmuls of factors, forward and backward, and ops on the whole result."""
    added: Mask
    """Those of `built` that add, scale and copy the whole result."""


@remembered
def rebuilt_weights(case: Analysis) -> Rebuilt | None:
    """The rebuilt weights; None if there are none. Needs shapes."""
    trace, host = case.trace, case.timeline.host.op
    low, high = case.timeline.window
    inside = (trace.ops.kind == OP) & (trace.ops.start_ns >= low) & (trace.ops.start_ns < high)
    ahead = inside & np.isin(host, (FORWARD, RECOMPUTE))
    thin: list[tuple[Shape, int]] = []
    weights: set[Shape] = set()
    tokens: Counter[int] = Counter()
    operands = _operands(case)
    for row in np.flatnonzero(ahead & case.ops_named(_WEIGHTS.__contains__)).tolist():
        pair = operands(int(trace.ops.name[row]), int(trace.ops.dims[row]))
        if pair is None:
            continue
        left, right = pair
        result = (*left[:-1], right[-1])
        if THIN_RATIO * left[-1] <= min(result[-2:]):
            thin.append((_plain(result), result[-2]))
            continue
        weights.add(_plain(right))
        tokens[left[-2]] += 1
    for row in np.flatnonzero(ahead & case.ops_named(_SCORES.__contains__)).tolist():
        scores = shapes_in(case, int(trace.ops.dims[row]))
        weights -= {(*shape[-3:-2], *sorted(shape[-2:])) for shape in scores if shape and len(shape) >= 2}
        weights -= {(math.prod(shape[:-2]), *sorted(shape[-2:])) for shape in scores if shape and len(shape) >= 3}
    rows = tokens.most_common(1)[0][0] if tokens else 0
    found = Counter(
        shape for shape, first in thin if shape in weights and first != rows and math.prod(shape) >= FEWEST_ELEMENTS
    )
    if not found:
        return None
    added, factors = _around(case, inside, set(found))
    links, graph = case.timeline.links.op, case.graph
    of = np.append(np.where(links >= 0, (added | factors)[links], False), False)
    add = np.append(np.where(links >= 0, added[links], False), False)
    built = of[graph.gpu_row] & graph.on_gpu
    if not built.any():
        return None
    return Rebuilt(tuple(sorted(found)), sum(found.values()) / case.steps, built, add[graph.gpu_row] & graph.on_gpu)


def _operands(case: Analysis) -> Callable[[int, int], tuple[Shape, Shape] | None]:
    """A function from the ids of an op's name and shapes to the shapes of the two arguments that it multiplies; None
    where they were not recorded."""

    @cache
    def operands(name: int, dims: int) -> tuple[Shape, Shape] | None:
        shapes, at = shapes_in(case, dims), _WEIGHTS[case.trace.strings[name]]
        if len(shapes) <= at[1]:
            return None
        left, right = shapes[at[0]], shapes[at[1]]
        return (left, right) if left and right and len(left) >= 2 and len(right) >= 2 else None

    return operands


def _around(case: Analysis, inside: Mask, shapes: set[Shape]) -> tuple[Mask, Mask]:
    """(ops that add, scale or copy tensors of these shapes, thin matmuls with such a result or argument)."""
    names = _AROUND | set(_FACTORS)
    added, factors = (np.zeros(len(case.trace.ops), bool) for _ in range(2))
    rows: I64 = np.flatnonzero(inside & case.ops_named(names.__contains__))
    operands = _operands(case)

    @cache
    def kind(name: int, dims: int) -> tuple[bool, bool]:
        """Whether an op with such arguments is (added, a factor)."""
        if case.trace.strings[name] in _AROUND:
            given = shapes_in(case, dims)
            return bool(given and given[0] and len(given[0]) >= 2 and _plain(given[0]) in shapes), False
        pair = operands(name, dims)
        if pair is None:
            return False, False
        left, right = pair
        result, small = (*left[:-1], right[-1]), min(left[-2], left[-1], right[-1])
        thin = THIN_RATIO * small <= sorted((left[-2], left[-1], right[-1]))[1]
        return False, thin and any(_plain(one) in shapes for one in (left, right, result))

    ops = case.trace.ops
    for row, name, dims in zip(rows.tolist(), ops.name[rows].tolist(), ops.dims[rows].tolist(), strict=True):
        added[row], factors[row] = kind(name, dims)
    return added, factors


def _plain(shape: Shape) -> Shape:
    """A shape with its last two dimensions sorted, so that their order does not matter."""
    return (*shape[:-2], *sorted(shape[-2:]))
