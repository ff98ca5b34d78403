"""Casts that autocast makes for layers whose weights are in fp32 and frozen.

Autocast keeps the 16-bit copy of a trained weight until the end of the forward pass, but casts a frozen weight again at
each use. The cast of a trained weight makes a node in autograd's graph, so the next op has a higher sequence number;
the cast of a frozen weight makes none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.passes import shapes_in, types_in
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import BACKWARD
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE, I64, OP, Mask
from gpuprof.units import Place, Published

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

HALF = frozenset({"c10::BFloat16", "c10::Half"})
LAYERS: Published[dict[str, Place]] = {
    "aten::linear": 1, "aten::conv1d": 1, "aten::conv2d": 1, "aten::matmul": 1,
}  # fmt: skip
"""Ops of layers → place of the weight."""
CASTS = frozenset({"aten::to", "aten::_to_copy"})
_CAST_BACKWARD = f"{AUTOGRAD_ENGINE}ToCopyBackward0"


@dataclass(frozen=True, slots=True)
class FrozenCasts:
    """Casts in layers whose weights are frozen. Masks are over the graph's nodes, without waits."""

    weights: Mask
    """Casts of the weights."""
    inputs: Mask
    """Casts of the inputs from fp32, and of their gradients back to it."""
    count: int
    """Number of casts of weights."""
    largest: tuple[int, ...]
    """Shape of the largest such weight."""


def find_frozen_casts(case: Analysis) -> FrozenCasts | None:
    """The casts; None where there are none, or where shapes or the ranges of autograd's engine were not recorded."""
    trace, parent = case.trace, case.timeline.nesting.parent
    ops, (low, high) = trace.ops, case.timeline.window
    engine = np.flatnonzero(case.ops_named(lambda name: name == _CAST_BACKWARD))
    copies = case.ops_named(lambda name: name == "aten::copy_") & (ops.start_ns >= low) & (ops.start_ns < high)
    rows = np.array([row for row in np.flatnonzero(copies).tolist() if _narrows(case, row)], np.int64)
    layer = climb(rows, parent, case.ops_named(LAYERS.__contains__)) if len(rows) else rows
    rows, layer = rows[layer >= 0], layer[layer >= 0]
    if not len(rows) or not case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE)).any():
        return None
    outer = _outermost_cast(case, rows)
    is_weight = np.array([_is_weight(case, *pair) for pair in zip(rows.tolist(), layer.tolist(), strict=True)], bool)
    frozen = is_weight & ~_makes_node(case, outer)
    if not frozen.any():
        return None
    inputs = np.isin(layer, layer[frozen]) & ~is_weight
    numbers = ops.sequence[outer[inputs]]
    back = engine[np.isin(ops.sequence[engine], numbers[numbers >= 0])]
    nodes = [case.nodes_within(case.ops_at(some)) & ~case.graph.waits for some in (outer[frozen], outer[inputs], back)]
    shapes = [shapes_in(case, int(ops.dims[row]))[0] or () for row in np.unique(rows[frozen]).tolist()]
    back_nodes = nodes[2] & (case.graph.phase == BACKWARD)
    return FrozenCasts(nodes[0], nodes[1] | back_nodes, int(frozen.sum()), max(shapes, key=np.prod))


def _narrows(case: Analysis, row: int) -> bool:
    """Whether a copy goes from fp32 to 16 bits."""
    types = types_in(case, row)[:2]
    return len(types) == 2 and types[0] in HALF and types[1] == "float"


def _is_weight(case: Analysis, row: int, layer: int) -> bool:
    """Whether a cast is of a layer's weight, by its shape."""
    place = LAYERS[case.trace.text(int(case.trace.ops.name[layer])) or ""]
    given = shapes_in(case, int(case.trace.ops.dims[layer]))
    shape = shapes_in(case, int(case.trace.ops.dims[row]))[0]
    return len(given) > place and shape is not None and len(shape) > 1 and shape == given[place] != given[0]


def _makes_node(case: Analysis, rows: I64) -> Mask:
    """Whether autograd records these ops: then the next op of the thread has a higher sequence number."""
    ops = case.trace.ops
    numbered = np.flatnonzero((ops.kind == OP) & (ops.sequence >= 0) & (ops.forward_thread <= 0))
    made = np.zeros(len(rows), bool)
    for thread in np.unique(ops.thread[rows]).tolist():
        own = numbered[ops.thread[numbered] == thread]
        own = own[np.argsort(ops.start_ns[own], kind="stable")]
        mine = np.flatnonzero(ops.thread[rows] == thread)
        after = np.searchsorted(ops.start_ns[own], ops.end_ns[rows[mine]])
        known = after < len(own)
        made[mine[known]] = ops.sequence[own[after[known]]] > ops.sequence[rows[mine[known]]]
    return made


def _outermost_cast(case: Analysis, rows: I64) -> I64:
    """The outermost op around each copy that does nothing but cast."""
    parent, casts = case.timeline.nesting.parent, case.ops_named(CASTS.__contains__) & (case.trace.ops.kind == OP)
    found = rows.copy()
    for _ in range(2):
        above = parent[found]
        found = np.where((above >= 0) & casts[above], above, found)
    return found
