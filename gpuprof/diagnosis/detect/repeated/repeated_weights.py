"""Weights that are computed again at each use of a layer, from parameters that have not changed in between: spectral
and weight norms, and other parametrizations, of layers that a forward pass calls several times.

Between two layers there are ops whose tensors have no size but those of the second layer's weight: they compute it.
Autograd accumulates the gradient of each parameter once in a backward pass. So if there are more such computations than
parameters with gradients, the others repeat one of the same parameter.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.loops.recurrent_loops import outermost_forward
from gpuprof.diagnosis.detect.passes import backward_of, shapes_in
from gpuprof.projection.changes.batch import ACCUMULATE
from gpuprof.replay.stretches import Stretches
from gpuprof.timeline.nesting import climb
from gpuprof.tracefile.trace import I64, Mask
from gpuprof.units import Place, Published

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

Shape = tuple[int, ...]
EMBEDDING = "aten::embedding"
_LAYERS: Published[dict[str, tuple[Place, Place]]] = {
    "aten::linear": (0, 1),
    "aten::conv1d": (0, 1),
    "aten::conv2d": (0, 1),
    "aten::conv3d": (0, 1),
    "aten::conv_transpose1d": (0, 1),
    "aten::conv_transpose2d": (0, 1),
    EMBEDDING: (1, 0),
}
"""Ops of layers → places of their input and their weight."""
BIAS: Published[Place] = 2
"""Place of a layer's bias."""
_MOVES = re.compile(
    r"^aten::(to|_to_copy|copy_|clone|contiguous|zeros\w*|zero_|ones\w*|empty\w*|fill_|detach\w*|view|reshape|flatten|t"
    r"|transpose|permute|expand\w*|slice|select|squeeze|unsqueeze|alias|lift_fresh)$"
)
"""Ops that copy, cast or view a tensor: they do not count as computation, and other findings cover casts."""


@dataclass(frozen=True, slots=True)
class Again:
    """Computations of weights that are repeated within a forward pass: all but the first of each parameter."""

    stretches: Stretches
    backward: Stretches
    """Autograd's work for each."""
    per_step: float
    """Computations per step, including the first ones."""
    parameters: float
    """Largest possible number of different weights per step, from the parameters with gradients."""
    ops: tuple[str, ...]
    """Names of the ops of the most frequent one, in order."""
    shape: Shape
    """Shape of the weight that it computes."""
    every: tuple[Stretches, Stretches]
    """Forward and backward work of all computations, including the first ones."""


def repeated_weights(case: Analysis) -> Again | None:
    """The repeated computations; None if there are none. Needs shapes and the ranges of autograd's engine. Computed
    once per case."""
    if "repeated_weights" not in case.memo:
        case.memo["repeated_weights"] = _find(case)
    return case.memo["repeated_weights"]


def _find(case: Analysis) -> Again | None:
    ops = case.trace.ops
    rows = outermost_forward(case)
    first, at = _computations(case, rows)
    if len(first) < 2:
        return None
    begin, layer, before = rows[first], rows[at], rows[np.maximum(first - 1, 0)]
    thread = ops.thread[begin].astype(np.int64)
    # Python that calls the parametrization comes before its first op.
    start = np.where((first > 0) & (ops.thread[before] == thread), ops.end_ns[before], ops.start_ns[begin])
    stretches = Stretches(thread, start, ops.start_ns[layer])
    backward = backward_of(case, stretches)
    trained = np.flatnonzero(backward.thread >= 0)
    low, high = case.timeline.window
    engine = case.ops_named(lambda name: name.startswith(ACCUMULATE))
    parameters = int((engine & (ops.start_ns >= low) & (ops.start_ns < high)).sum())
    if all(_has_bias(case, row) for row in np.unique(layer[trained]).tolist()):
        parameters //= 2  # one of two is a bias
    if not parameters or len(trained) <= parameters:
        return None
    # Between two backward passes each parameter is used at least once.
    passes = np.searchsorted(case.timeline.host.backward.start, ops.start_ns[begin[trained]])
    order, starts, counts = np.unique(passes, return_index=True, return_counts=True)
    rank = np.arange(len(trained)) - np.repeat(starts, counts)
    again = trained[rank >= math.ceil(parameters / len(order))]
    if not len(again):
        return None
    kinds = Counter((tuple(ops.name[rows[a:b]].tolist()), int(ops.dims[rows[b]])) for a, b in _pairs(first, at, again))
    names, _ = kinds.most_common(1)[0][0]
    b = next(b for a, b in _pairs(first, at, again) if tuple(ops.name[rows[a:b]].tolist()) == names)
    place = _LAYERS[case.trace.strings[int(ops.name[rows[b]])]][1]
    return Again(
        stretches.some(again), backward.some(again), len(trained) / case.steps, parameters / case.steps,
        tuple(case.trace.strings[name] for name in names), shapes_in(case, int(ops.dims[rows[b]]))[place] or (),
        (stretches, backward),
    )  # fmt: skip


def _pairs(first: I64, at: I64, which: I64) -> list[tuple[int, int]]:
    return list(zip(first[which].tolist(), at[which].tolist(), strict=True))


def _computations(case: Analysis, rows: I64) -> tuple[I64, I64]:
    """(place among `rows` of the first op, place of the layer) of each computation of a weight just before its use."""
    ops = case.trace.ops
    layers = case.ops_named(_LAYERS.__contains__)[rows]
    computes = (_launching(case, rows) & ~case.ops_named(lambda name: _MOVES.match(name) is not None))[rows]
    known: dict[tuple[Shape, int], bool] = {}
    found: list[tuple[int, int]] = []
    for at in np.flatnonzero(layers).tolist():
        layer = int(rows[at])
        given, weight = _given(case, layer)
        if given is None or weight is None or len(weight) < 2:
            continue
        sizes = _sizes_of(weight)
        if all(size in sizes for size in given):
            continue  # what has the sizes of the weight alone may be an activation
        first, whole, some = at, False, False
        while first > 0 and ops.thread[rows[first - 1]] == ops.thread[layer] and not layers[first - 1]:
            dims = int(ops.dims[rows[first - 1]])
            if (weight, dims) not in known:
                known[weight, dims] = all(size in sizes for one in shapes_in(case, dims) for size in one or ())
            if not known[weight, dims]:
                break
            first -= 1
            if computes[first]:
                some = True
                whole = whole or any(sorted(one or ()) == sorted(weight) for one in shapes_in(case, dims))
        if some and whole:
            found.append((first, at))
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _given(case: Analysis, layer: int) -> tuple[Shape | None, Shape | None]:
    """Shapes of a layer's input and weight."""
    shapes = shapes_in(case, int(case.trace.ops.dims[layer]))
    given, weight = _LAYERS[case.trace.strings[int(case.trace.ops.name[layer])]]
    return (shapes[given], shapes[weight]) if len(shapes) > max(given, weight) else (None, None)


def _has_bias(case: Analysis, layer: int) -> bool:
    """Whether a layer has a bias of its own, which is a parameter, too."""
    shapes = shapes_in(case, int(case.trace.ops.dims[layer]))
    named = case.trace.strings[int(case.trace.ops.name[layer])]
    return named != EMBEDDING and len(shapes) > BIAS and bool(shapes[BIAS])


def _sizes_of(weight: Shape) -> set[int]:
    """Sizes of tensors that are computed from a weight alone: its own, and those of the flattened weight."""
    total = math.prod(weight)
    return {1, total, *weight, *(total // size for size in weight if size)}


def _launching(case: Analysis, rows: I64) -> Mask:
    """Of the trace's ops, those of `rows` that launch work on the GPU, by themselves or by ops inside them."""
    ops, links = case.trace.ops, case.timeline.links.op
    chosen, found = np.zeros(len(ops), bool), np.zeros(len(ops) + 1, bool)
    chosen[rows] = True
    found[climb(links[links >= 0], case.timeline.nesting.parent, chosen)] = True
    return found[:-1]
