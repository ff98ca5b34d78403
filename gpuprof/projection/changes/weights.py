"""Work on weights and their gradients, which is the same for any number of tokens, recognised by the shapes of
tensors."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.phases import FORWARD
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import OP, Mask
from gpuprof.units import Dimensions, Place, Published

Shape = tuple[int, ...]

STREAMED = ("elementwise", "cast/copy", "reduction", "triton_fused", "memcpy", "memset")
"""Categories of work that streams over its tensors, so that shapes describe it fully. Work that picks rows of a weight
by indices is not among them: its cost follows the indices, which may not have been recorded."""
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
"""Matmuls of rows with a weight, and the positions of the two among the arguments. Stacks of matmuls with one matrix
each (bmm) are left out: attention's are between activations, whose lengths need not be the number of tokens."""
EMBEDDING, ACCUMULATED = "aten::embedding", "torch::autograd::AccumulateGrad"
SLICES: Published[dict[str, Dimensions]] = {"aten::_grouped_mm": 3}
"""Number of dimensions of the weight, if not two."""


def on_weights(timeline: Timeline) -> Mask:
    """Mask of the GPU events whose op got only tensors with shapes of weights: casts of weights, gradients that are
    cast back, zeroed or added."""
    trace = timeline.trace
    known = weight_shapes(timeline)
    if not known:
        return np.zeros(len(trace.gpu), bool)
    ops = trace.ops
    shapes = trace.rows_named(ops.dims, lambda text: _all_known(shapes_of(text), known))
    # Not all traces have the shapes of the tensors in a list.
    lists = trace.rows_named(ops.types, lambda text: "TensorList" in text or "GenericList" in text)
    streamed = np.isin(timeline.category, [CATEGORIES.index(name) for name in STREAMED])
    return streamed & np.append(shapes & ~lists, False)[timeline.links.op]


def weight_shapes(timeline: Timeline) -> set[Shape]:
    """Shapes that only weights have: those of the second operands of the forward pass's matmuls, of embedding tables,
    and of parameters whose gradients are accumulated, also transposed.

    Without shapes that have a side in common with rows of a matmul or of indices: if the number of tokens equals the
    width of the model, a shape does not show which of the two it is.
    """
    ops = timeline.trace.ops
    # In a backward pass the second operand of a weight's gradient is an activation.
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
    """Shapes of an op's arguments by position, () for arguments that are not tensors; None if the text contains
    anything else, such as lists of tensors."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(found, list):
        return None
    shapes = []
    for value in found:
        if not isinstance(value, list):
            return None
        for side in value:
            if type(side) is not int or side < 0:
                return None
        shapes.append(tuple(value))
    return shapes


def _all_known(shapes: list[Shape] | None, known: set[Shape]) -> bool:
    """Whether there are tensors, and all with more than one element have known shapes."""
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
