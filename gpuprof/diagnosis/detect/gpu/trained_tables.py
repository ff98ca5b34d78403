"""Whole tables of the vocabulary that are trained next to adapters: embeddings, the output layer, or both.

The run says how many weights are trained and how many of them are adapters; the rest is a table, or two, if it has as
many weights as these. Its work is that of ops on tensors of a table's shape after the forward pass, its share of lists
of tensors, and the matrix multiplications whose results are its gradients.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.costs.arguments import nested_shapes, parse
from gpuprof.costs.formulas.gemm import is_matmul, matmul_of
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.timeline.phases import FORWARD, OPTIMIZER, RECOMPUTE
from gpuprof.tracefile.trace import F64, Mask
from gpuprof.units import Assumed, Convention, Share, Tensors

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

MOST_TABLES: Convention[Tensors] = 2
"""Embeddings and an output layer of its own."""
NEARLY: Assumed[Share] = 0.01
"""How far the weights that are trained and belong to no adapter may be from whole tables, as a share of these: norms
may be trained as well."""
LEAST_TABLE_SHARE: Assumed[Share] = 0.5
"""Smallest share of all trained weights in tables that counts."""
_DENSE = "aten::embedding_dense_backward"


@dataclass(frozen=True, slots=True)
class TrainedTables:
    """Tables that are trained whole, and their work in the recorded steps."""

    count: int
    """How many there are."""
    rows: int
    """Size of the vocabulary."""
    share: float
    """Share of all trained weights, 0 to 1."""
    left: F64
    """Per node of the graph the share of its time that stays without them."""
    updates: Mask
    """Nodes of the optimizer and of clipping, among all nodes of the graph."""


def find_trained_tables(case: Analysis) -> TrainedTables | None:
    """The tables; None if the run does not say that there are any, or if no work on them was recorded."""
    model = (case.run.model or {}) if case.run else {}
    adapters = (model.get("lora") or {}).get("parameters")
    rows, width, trained = (model.get(name) for name in ("vocabulary", "hidden_size", "trainable"))
    if not (adapters and rows and width and trained):
        return None
    others, table = trained - adapters, rows * width
    count = round(others / table)
    if not 1 <= count <= MOST_TABLES or abs(others - count * table) > NEARLY * others:
        return None
    left = _left(case, (rows, width))
    if others < LEAST_TABLE_SHARE * trained or not (left < 1.0).any():
        return None
    return TrainedTables(count, rows, others / trained, left, case.graph.phase == OPTIMIZER)


def _left(case: Analysis, table: tuple[int, int]) -> F64:
    """Per node of the graph the share of its time that stays without gradients and updates of tables of this shape."""
    ops, graph, trace = case.trace.ops, case.graph, case.trace
    launched = np.append(case.timeline.links.op, -1)[graph.gpu_row]
    launched = np.where(graph.on_gpu, launched, -1)
    dense = np.flatnonzero(case.ops_named(_DENSE.__eq__)).tolist()
    within = case.ops_within(case.ops_at(row for row in dense if _last(case, row) == table[1]))
    left, matmuls = np.ones(len(ops) + 1), list[tuple[int, int, int]]()
    for row in np.unique(launched[launched >= 0]).tolist():
        name, ahead = trace.text(int(ops.name[row])) or "", case.timeline.host.op[row] in (FORWARD, RECOMPUTE)
        dims = trace.text(int(ops.dims[row]))
        first = next((one for one in nested_shapes(dims) if one), [])
        if is_matmul(name):
            sides = _sides(name, dims, trace.text(int(ops.types[row])), table[1])
            if sides is not None and (sides[0] == table[0] or not ahead):
                matmuls.append((row, *sides))
        elif within[row]:
            left[row] = 0.0
        elif not ahead and first:
            whole = sum(map(math.prod, first))
            left[row] = 1.0 - sum(math.prod(shape) for shape in first if shape == table) / max(whole, 1)
    left[_gradients(matmuls, table[0])] = 0.0
    return np.where(launched >= 0, left[launched], 1.0)


def _last(case: Analysis, row: int) -> int | None:
    """Innermost dimension of an op's first argument; None where it has none."""
    shape = next(iter(shapes_in(case, int(case.trace.ops.dims[row]))), None)
    return shape[-1] if shape else None


def _sides(name: str, dims: str | None, types: str | None, width: int) -> tuple[int, int] | None:
    """(side of the result other than the width, length of the sums) of a multiplication that may give a gradient of a
    table; None for others."""
    found = matmul_of(parse(name, dims, types, None, None))
    if found is None or found.batch != 1 or width not in (found.m, found.n):
        return None
    return int(found.m if found.n == width else found.n), int(found.k)


def _gradients(matmuls: list[tuple[int, int, int]], rows: int) -> list[int]:
    """Those of (op, other side, length of the sums) whose results are a table's gradient: all rows at once, or parts
    that make up all rows.

    A part of the output layer has two multiplications with the same three sizes, the gradient of its weights and that
    of its inputs; only the sides of the former add up to the vocabulary.
    """
    sizes = {(side, inner) for _, side, inner in matmuls}
    parts = defaultdict[int, list[tuple[int, int]]](list)
    found = [op for op, side, inner in matmuls if side == rows and inner != rows]
    for op, side, inner in matmuls:
        if side < rows and (inner, side) in sizes:
            parts[inner].append((op, side))
    for each in parts.values():
        if sum(side for _, side in each) % rows == 0:
            found += [op for op, _ in each]
    return found
