"""Tensors that are computed again and again in a step of tensors without gradients: a graph's normalised adjacency
matrix or edge weights, a mask from the lengths of a batch, a bias from distances.

While gradients are on, each recorded op has the number of autograd's next node. An op that makes no node leaves that
number to the op after it: it computed of tensors without gradients.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.passes import shapes_in, siblings, types_in
from gpuprof.diagnosis.detect.repeated.rebuilt_constants import GO_ON, MAKE
from gpuprof.replay.stretches import Stretches
from gpuprof.tracefile.trace import I64, Mask
from gpuprof.units import Assumed, Entries, Ops

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

Shape = tuple[int, ...]
FEWEST_AGAIN: Assumed[Entries] = 3
"""Times in a step: two may be of two inputs."""
FEWEST_OPS: Assumed[Ops] = 2
MOST_OPS: Assumed[Ops] = 32
COMPUTE = (GO_ON - MAKE) | frozenset(
    f"aten::{name}"
    for name in (
        "sum", "mean", "max", "min", "amax", "amin", "norm", "linalg_vector_norm", "sqrt", "rsqrt", "square", "log1p",
        "cumsum", "index", "index_select", "gather", "scatter_add", "scatter_add_", "index_add", "index_add_",
        "log_softmax", "softmax", "sigmoid", "tanh", "cdist", "diag", "diagonal", "permute", "t", "flatten", "type_as",
        "squeeze", "expand_as", "bincount", "nan_to_num", "maximum", "isinf", "masked_fill_",
    )
)  # fmt: skip
"""Ops that compute one. Matrix multiplications and layers work on samples."""
MATMULS = frozenset(f"aten::{name}" for name in ("matmul", "mm", "bmm", "_sparse_mm", "einsum"))
"""Ops whose first argument may be what was computed again."""
FLOATS = frozenset({"float", "double", "c10::BFloat16", "c10::Half"})


@dataclass(frozen=True, slots=True)
class Untrained:
    """Chains of ops that come again; columns by chain."""

    again: Stretches
    """All but the first of each in a step."""
    every: Stretches
    """With the first ones."""
    times: int
    """In a step, of that which is computed most often."""
    ops: tuple[str, ...]
    """Its ops."""


def find_untrained(case: Analysis) -> Untrained | None:
    """Chains of ops without a node of autograd, before an op that has one, which come with the same shapes at least
    three times in a step; None without any, without shapes, or where nothing is trained.

    Their largest tensor has no size that gradients flow through: statistics of activations look the same otherwise.
    """
    rows, family = siblings(case)
    if not len(rows):
        return None
    ops = case.trace.ops
    names, computes = case.trace.texts(ops.name[rows]), case.ops_named(COMPUTE.__contains__)[rows]
    chains: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    step = np.searchsorted(case.timeline.steps.start_ns, ops.start_ns[rows], side="right")
    for first, after in _without_nodes(ops.sequence[rows], family, computes):
        if not FEWEST_OPS <= after - first <= MOST_OPS:
            continue
        key = (int(step[first]), *names[first:after], *ops.dims[rows[first:after]].tolist())
        chains[key].append((first, after))
    found = [(key, mine) for key, mine in chains.items() if len(mine) >= FEWEST_AGAIN]
    if found:
        flowing = _flowing(case, rows, family, names)
        found = [one for one in found if _is_constant(case, rows, one[1][0], flowing)]
    if not found:
        return None
    key, most = max(found, key=lambda one: len(one[1]))
    named = tuple(dict.fromkeys(name for name in key[1:] if isinstance(name, str)))
    again, every = ([pair for _, mine in found for pair in mine[since:]] for since in (1, 0))
    return Untrained(_stretches(case, rows, again), _stretches(case, rows, every), len(most), named)


def _without_nodes(sequence: I64, family: I64, computes: Mask) -> list[tuple[int, int]]:
    """(first, one after the last) op of each chain without nodes whose next op, of the same parent, has one."""
    same = (family[1:] == family[:-1]) & (sequence[1:] == sequence[:-1]) & (sequence[1:] >= 0)
    # A node was made where the next op of the parent has a higher number.
    made = np.append((family[1:] == family[:-1]) & (sequence[1:] > sequence[:-1]), False)
    found, first = [], None
    for at, (goes_on, may) in enumerate(zip(np.append(same, False).tolist(), computes.tolist(), strict=True)):
        if goes_on and may:
            first = at if first is None else first
            continue
        if first is not None and made[at] and sequence[at] == sequence[first]:
            found.append((first, at))
        first = None
    return found


def _flowing(case: Analysis, rows: I64, family: I64, names: list[str]) -> frozenset[Shape]:
    """Shapes of tensors that gradients flow through: first arguments of ops that make a node."""
    ops = case.trace.ops
    sequence = ops.sequence[rows]
    made = np.append((family[1:] == family[:-1]) & (sequence[1:] > sequence[:-1]), False)
    texts = {int(ops.dims[rows[at]]) for at in np.flatnonzero(made).tolist() if names[at] not in MATMULS}
    return frozenset(shape for text in texts for shape in shapes_in(case, text)[:1] if shape)


def _is_constant(case: Analysis, rows: I64, chain: tuple[int, int], flowing: frozenset[Shape]) -> bool:
    """Whether a chain begins with numbers, and its largest tensor does not have the size of an activation."""
    first, after = chain
    given = types_in(case, int(rows[first]))[:1]
    shapes = [shape for row in rows[first:after].tolist() for shape in shapes_in(case, int(case.trace.ops.dims[row]))]
    largest = max((shape for shape in shapes if shape), key=math.prod, default=None)
    return bool(given) and given[0] in FLOATS and largest is not None and largest not in flowing


def _stretches(case: Analysis, rows: I64, chains: list[tuple[int, int]]) -> Stretches:
    ops = case.trace.ops
    first, last = (rows[np.array(column, np.int64)] for column in zip(*((a, b - 1) for a, b in chains), strict=True))
    return Stretches.of(ops, first, last)
