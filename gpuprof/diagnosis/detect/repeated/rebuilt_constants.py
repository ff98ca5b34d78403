"""Tensors that are made from nothing but sizes, again and again in a step: masks, positions, rotary tables."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.passes import shapes_in, siblings
from gpuprof.replay.stretches import Stretches
from gpuprof.tracefile.trace import I64
from gpuprof.units import Assumed, Entries, Ops

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_REBUILT: Assumed[Entries] = 4
"""Fewest times per step that the same constant is made: a model may have one mask each for encoder, decoder and
both."""
FEWEST_OPS: Assumed[Ops] = 3
MOST_OPS: Assumed[Ops] = 32
"""Most ops that make one. (A single `zeros` is a buffer to which something else is added.)"""
MAKE = frozenset(
    f"aten::{name}" for name in ("arange", "ones", "full", "zeros", "eye", "linspace", "ones_like", "full_like")
)
"""Ops that make a tensor of a size alone."""
TRIANGLES = frozenset({"aten::tril", "aten::triu"})
"""Ops that make a causal mask of a square, however few others there are."""
GO_ON = MAKE | frozenset(
    f"aten::{name}"
    for name in (
        "tril", "triu", "mul", "div", "add", "sub", "pow", "exp", "log", "neg", "reciprocal", "rsub", "outer", "einsum",
        "cos", "sin", "cat", "stack", "to", "_to_copy", "unsqueeze", "expand", "view", "reshape", "transpose", "repeat",
        "lt", "le", "gt", "ge", "eq", "ne", "logical_not", "logical_and", "bitwise_and", "bitwise_not", "bitwise_or",
        "masked_fill", "masked_fill_", "where", "fill_", "float", "bool", "slice", "select", "clone", "contiguous",
        "floor_divide", "abs", "clamp", "minimum", "maximum", "mul_", "add_", "sub_", "div_",
    )
)  # fmt: skip
"""Ops that may process the tensor further."""
ACTIVATIONS = frozenset(
    f"aten::{name}"
    for name in ("linear", "mm", "addmm", "bmm", "matmul", "scaled_dot_product_attention", "softmax", "layer_norm",
                 "embedding", "conv2d", "conv1d", "rms_norm")
)  # fmt: skip
"""Ops whose arguments depend on samples and weights: an op that sees a tensor of such a shape makes no constant."""


@dataclass(frozen=True, slots=True)
class RebuiltConstants:
    """Constants that are made again; columns by constant."""

    again: Stretches
    """All but the first of each in a step."""
    times: int
    """Per step, of the constant that is made most often."""
    ops: tuple[str, ...]
    """The ops of that constant."""


def find_rebuilt_constants(case: Analysis) -> RebuiltConstants | None:
    """Chains of ops that occur several times in a step with the same shapes, each from an op that makes a tensor of
    some size to the last op that sees no activation. None if there are none, or if shapes were not recorded."""
    rows, family = siblings(case)
    if not len(rows):
        return None
    starts = np.flatnonzero(case.ops_named(MAKE.__contains__)[rows]).tolist()
    if not starts:
        return None
    ops = case.trace.ops
    names, dims = case.trace.texts(ops.name[rows]), ops.dims[rows].tolist()
    activations, families = _activations(case, rows), family.tolist()
    chains: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    end, step = 0, np.searchsorted(case.timeline.steps.start_ns, ops.start_ns[rows], side="right")
    for at in starts:
        if at < end:
            continue  # within the chain before
        end = _end(case, dims, families, names, activations, at)
        if end - at >= FEWEST_OPS or not TRIANGLES.isdisjoint(names[at:end]):
            key = (int(step[at]), *names[at:end], *dims[at:end])
            chains[key].append((int(rows[at]), int(rows[end - 1])))
    repeated = [(key, mine) for key, mine in chains.items() if len(mine) >= FEWEST_REBUILT]
    if not repeated:
        return None
    again = np.array([pair for _, mine in repeated for pair in mine[1:]], np.int64)
    key, most = max(repeated, key=lambda one: len(one[1]))
    named = tuple(dict.fromkeys(name for name in key[1:] if isinstance(name, str)))
    first, last = again[:, 0], again[:, 1]
    stretches = Stretches.of(ops, first, last)
    return RebuiltConstants(stretches, len(most), named)


def _activations(case: Analysis, rows: I64) -> frozenset[tuple[int, ...]]:
    """Shapes of the tensors that layers take."""
    layers = case.ops_named(ACTIVATIONS.__contains__)[rows]
    texts = np.unique(case.trace.ops.dims[rows[layers]]).tolist()
    return frozenset(shape for text in texts for shape in shapes_in(case, text) if shape)


def _end(
    case: Analysis, dims: list[int], family: list[int], names: list[str], activations: frozenset[tuple[int, ...]],
    at: int,
) -> int:  # fmt: skip
    """The position after the last op of the chain that begins at `at`."""
    end = at + 1
    while end < min(at + MOST_OPS, len(names)) and family[end] == family[at] and names[end] in GO_ON:
        if any(shape in activations for shape in shapes_in(case, dims[end]) if shape):
            break
        end += 1
    return end
