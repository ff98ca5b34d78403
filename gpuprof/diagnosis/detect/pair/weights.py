"""The weights that a recorded program multiplies by, as far as its shapes show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.costs.arguments import argument_shapes
from gpuprof.timeline.phases import BACKWARD
from gpuprof.tracefile.trace import NO_TEXT

if TYPE_CHECKING:
    from gpuprof.timeline.timeline import Timeline

MULTIPLIES = frozenset({"aten::mm", "aten::addmm", "aten::linear", "aten::convolution"})
"""Ops whose second tensor is a weight, in the forward pass."""


def weight_shapes(timeline: Timeline) -> frozenset[tuple[int, ...]]:
    """Shapes of the weights, each sorted, so that transposed weights count as equal; empty if shapes were not
    recorded."""
    trace, ops = timeline.trace, timeline.trace.ops
    low, high = timeline.window
    rows = trace.rows_named(ops.name, MULTIPLIES.__contains__) & (timeline.host.op != BACKWARD)
    rows &= (ops.start_ns >= low) & (ops.start_ns < high) & (ops.dims != NO_TEXT)
    found = set()
    for text in np.unique(ops.dims[rows]).tolist():
        tensors = [shape for shape in argument_shapes(trace.text(text)) if shape is not None and len(shape) >= 2]
        if len(tensors) >= 2:
            found.add(tuple(sorted(tensors[1])))
    return frozenset(found)
