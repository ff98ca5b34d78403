"""Work on weights and their gradients, which is the same for any number of tokens, recognised by the shapes of
tensors."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.phases import FORWARD
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import OP, Mask
from gpuprof.units import Dimensions, Place, Published

Shape = tuple[int, ...]

STREAMED = ("elementwise", "cast/copy", "reduction", "triton_fused", "memcpy", "memset")
"""Categories of work that goes over its tensors, whose shapes so tell all of it. What picks rows of a weight by indices
is none of it: a list of indices may not have been recorded, and it is those that count."""
FACTORS: Published[dict[str, tuple[Place, Place]]] = {
    "aten::linear": (0, 1),
    "aten::mm": (0, 1),
    "aten::matmul": (0, 1),
    "aten::addmm": (1, 2),
    "aten::addmm_": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::_scaled_mm": (0, 1),
    "aten::_grouped_mm": (0, 1),
}
"""Products of rows with a weight, and where among the arguments the two are. Stacks of matmuls with one matrix each
(bmm) are left out: attention's are between activations, whose lengths need not be the tokens'."""
EMBEDDING, ACCUMULATED = "aten::embedding", "torch::autograd::AccumulateGrad"
SLICES: Published[dict[str, Dimensions]] = {"aten::_grouped_mm": 3}
"""Dimensions of the weight, where they are not two."""


def on_weights(timeline: Timeline) -> Mask:
    """GPU events whose op was given tensors of weights' shapes and no others: casts of weights, gradients cast back,
    zeroed, added."""
    trace = timeline.trace
    known = weight_shapes(timeline)
    if not known:
        return np.zeros(len(trace.gpu), bool)
    ops = trace.ops
    shapes = trace.rows_named(ops.dims, lambda text: _all_known(shapes_of(text), known))
    # Of the tensors in a list not all traces tell the shapes.
    lists = trace.rows_named(ops.types, lambda text: "TensorList" in text or "GenericList" in text)
    streamed = np.isin(timeline.category, [CATEGORIES.index(name) for name in STREAMED])
    return streamed & np.append(shapes & ~lists, False)[timeline.links.op]


def weight_shapes(timeline: Timeline) -> set[Shape]:
    """Shapes that weights have and nothing else: of the second factors of the forward pass's products, of embedding
    tables, of parameters whose gradients are accumulated; transposed, too.

    None with a side that rows of a product or of indices have as well: where the number of tokens equals the width of
    the model, a shape does not show which of the two it is.
    """
    ops = timeline.trace.ops
    # In a backward pass the second factor of a weight's gradient is an activation.
    ahead = (ops.kind == OP) & (timeline.host.op == FORWARD)
    found: set[Shape] = set()
    sides: set[int] = set()
    for name, (rows_at, weight_at) in FACTORS.items():
        for shapes in _distinct(timeline, name, ahead):
            rows, weight = _at(shapes, rows_at), _at(shapes, weight_at)
            if rows and weight and len(weight) == SLICES.get(name, 2):
                found.add(weight)
                sides |= {*rows[:-1], math.prod(rows[:-1])}
    for shapes in _distinct(timeline, EMBEDDING, ahead):
        table, indices = _at(shapes, 0), _at(shapes, 1)
        if table and indices:
            found.add(table)
            sides |= {*indices, math.prod(indices)}
    for shapes in _distinct(timeline, ACCUMULATED, np.ones(len(ops), bool)):
        found |= {shape for shape in shapes[:1] if shape}
    found |= {(*shape[:-2], shape[-1], shape[-2]) for shape in found if len(shape) > 1}
    return {shape for shape in found if not sides & set(shape)}


def shapes_of(text: str) -> list[Shape] | None:
    """Shapes of an op's arguments by position, () for what is no tensor; None where the text holds anything else, such
    as lists of tensors."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return [tuple(shape) for shape in found] if isinstance(found, list) and all(map(_is_shape, found)) else None


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(side) is int and side >= 0 for side in value)


def _all_known(shapes: list[Shape] | None, known: set[Shape]) -> bool:
    """Whether there are tensors, and all of more than one element have known shapes."""
    real = [shape for shape in shapes or () if math.prod(shape) != 1]
    return bool(real) and known.issuperset(real)


def _distinct(timeline: Timeline, name: str, among: Mask) -> list[list[Shape]]:
    """The different arguments that ops of a name have."""
    trace, ops = timeline.trace, timeline.trace.ops
    rows = among & (ops.name == trace.string_ids.get(name, -1))
    texts = (trace.text(dims) for dims in np.unique(ops.dims[rows]).tolist())
    return [shapes for shapes in (shapes_of(text or "") for text in texts) if shapes is not None]


def _at(shapes: list[Shape], position: int) -> Shape:
    return shapes[position] if position < len(shapes) else ()
