"""Matrix multiplications of linear layers in half precision, with their layer's shape and their role in training."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.costs.arguments import parse
from gpuprof.costs.formulas.gemm import Matmul, matmul_of
from gpuprof.costs.fp8 import FORWARD, GRAD_INPUT, GRAD_WEIGHT
from gpuprof.timeline.phases import BACKWARD, RECOMPUTE
from gpuprof.timeline.phases import FORWARD as FORWARD_PHASE
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import I64, NO_TEXT, Trace
from gpuprof.units import Assumed, Elements, Published

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

ALIGNED_ELEMENTS: Published[Elements] = 8
"""16-bit matrix multiplications use tensor cores at full rate if the inner and the last dimensions are multiples of
this: 16 bytes (NVIDIA, Matrix Multiplication Background User's Guide)."""
HALF = ("c10::BFloat16", "c10::Half")
OPS = frozenset({"aten::mm", "aten::addmm", "aten::linear", "aten::matmul"})
FEWEST_OUTPUT_COLUMNS: Assumed[Elements] = 30_000
"""From this number of columns on, a layer counts as the output over a vocabulary, which stays in higher precision."""


@dataclass(frozen=True, slots=True)
class LayerMatmul:
    """One matrix multiplication of a linear layer."""

    m: float
    """m, k, n: rows (tokens), inner dimension and columns of the layer's forward matmul, also for other roles."""
    k: float
    n: float
    role: int
    """FORWARD, GRAD_INPUT or GRAD_WEIGHT of `costs.fp8`."""
    casts_input: bool
    """Whether its input needs a cast: the layer before it did not multiply the same rows."""
    nodes: I64
    """Its kernels as nodes of the graph, the longest first."""


@remembered
def layer_matmuls(case: Analysis) -> list[LayerMatmul]:
    """All matmuls of linear layers in the recorded passes, in launch order, without those of unknown shapes."""
    graph, ops, links = case.graph, case.trace.ops, case.timeline.links
    gemm = np.append(case.category("gemm"), False)[graph.gpu_row] & graph.on_gpu
    nodes = np.flatnonzero(gemm & np.isin(graph.phase, (FORWARD_PHASE, RECOMPUTE, BACKWARD)))
    op = links.op[graph.gpu_row[nodes]]
    nodes, op = nodes[op >= 0], op[op >= 0]
    nodes = nodes[np.argsort(ops.start_ns[op], kind="stable")]
    op = links.op[graph.gpu_row[nodes]]
    by_op: dict[int, list[int]] = {}
    for node, row in zip(nodes.tolist(), op.tolist(), strict=True):
        by_op.setdefault(row, []).append(node)
    matmuls: dict[tuple[int, int, int], Matmul | None] = {}
    shaped = list[tuple[list[int], Matmul]]()
    rows = np.fromiter(by_op, np.int64, len(by_op))
    each = (column[rows].tolist() for column in (ops.name, ops.dims, ops.types))
    for found, *texts in zip(by_op.values(), *each, strict=True):
        texts = tuple(texts)
        if texts not in matmuls:
            matmuls[texts] = _matmul(case.trace, *texts)
        if (one := matmuls[texts]) is not None:
            shaped.append((found, one))
    durations, phases = graph.duration_ns, dict(zip(nodes.tolist(), graph.phase[nodes].tolist(), strict=True))
    forward = Counter((one.m, one.k, one.n) for found, one in shaped if phases[found[0]] != BACKWARD)
    result, before = [], (0.0, 0.0)
    for found, one in shaped:
        rows = np.array(sorted(found, key=lambda node: -durations[node]) if len(found) > 1 else found, np.int64)
        m, k, n, role = _as_layer(one, forward, phases[found[0]] == BACKWARD)
        if max(k, n) >= FEWEST_OUTPUT_COLUMNS:
            continue
        casts = role != FORWARD or (m, k) != before
        before = (m, k) if role == FORWARD else (0.0, 0.0)
        result.append(LayerMatmul(m, k, n, role, casts, rows))
    return result


def _matmul(trace: Trace, name_text: int, dims: int, types: int) -> Matmul | None:
    """The matrix multiplication of an op in half precision, from the ids of its texts; None if it is not one, or if its
    shapes are unknown."""
    name = trace.strings[name_text]
    if name not in OPS or dims == NO_TEXT or types == NO_TEXT:
        return None
    arguments = parse(name, trace.text(dims), trace.text(types), None, None)
    found = matmul_of(arguments)
    if found is None or found.batch != 1 or found.left.type not in HALF or min(found.m, found.n, found.k) < 1:
        return None
    return found


def _as_layer(one: Matmul, forward: Counter, backward: bool) -> tuple[float, float, float, int]:
    """(m, k, n, role) of the layer that a matrix multiplication belongs to, by the forward pass's shapes."""
    if not backward:
        return one.m, one.k, one.n, FORWARD
    if forward[(one.m, one.n, one.k)]:  # (M × N) by (N × K)
        return one.m, one.n, one.k, GRAD_INPUT
    if forward[(one.k, one.n, one.m)]:  # (N × M) by (M × K)
        return one.k, one.n, one.m, GRAD_WEIGHT
    if forward[(one.k, one.m, one.n)]:  # (K × M) by (M × N)
        return one.k, one.m, one.n, GRAD_WEIGHT
    if forward[(one.m, one.k, one.n)]:  # repeated for the backward pass
        return one.m, one.k, one.n, FORWARD
    return one.k, one.n, one.m, GRAD_WEIGHT
