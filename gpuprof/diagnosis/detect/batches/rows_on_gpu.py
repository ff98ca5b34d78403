"""Rows that a DataLoader takes one by one from tensors on the GPU, and joins there, in the training's own process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import DATA
from gpuprof.tracefile.trace import OP, Mask
from gpuprof.units import Assumed, Ops, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_ROWS: Assumed[Ops] = 16
"""Fewest rows of a batch for which one index gains."""
TAKING_SHARE: Assumed[Share] = 0.9
"""Smallest share of the ops there that takes or joins rows; others compute something for each sample."""
ROWS = frozenset(f"aten::{name}" for name in ("select", "index", "index_select", "__getitem__"))
"""Ops that take a row."""
JOINS = frozenset(f"aten::{name}" for name in ("stack", "cat"))
_BETWEEN = frozenset(
    f"aten::{name}" for name in ("resize_", "view", "empty", "unbind", "alias", "detach", "clone", "item")
)


@dataclass(frozen=True, slots=True)
class RowsOnGpu:
    """The making of batches whose rows are joined by kernels."""

    nodes: Mask
    """Its CPU and GPU work; a mask over the graph's nodes."""
    rows: float
    """Rows that are taken per step."""
    is_all: bool
    """Whether nearly nothing else is done for a batch."""


def rows_on_gpu(case: Analysis) -> RowsOnGpu | None:
    """The making of batches on the GPU; None where rows are joined in host memory, or few are taken. Computed once per
    case."""
    if "rows_on_gpu" not in case.memo:
        case.memo["rows_on_gpu"] = _find(case)
    return case.memo["rows_on_gpu"]


def _find(case: Analysis) -> RowsOnGpu | None:
    graph, ops, (low, high) = case.graph, case.trace.ops, case.timeline.window
    parent = case.timeline.nesting.parent
    mine = (ops.kind == OP) & (case.timeline.host.op == DATA) & (ops.start_ns >= low) & (ops.start_ns < high)
    mine &= case.ops_named(lambda name: name.startswith("aten::"))
    outer = np.flatnonzero(mine & ~np.append(mine, False)[parent])
    names = [case.trace.strings[name] for name in ops.name[outer].tolist()]
    rows, joins = (sum(name in some for name in names) for some in (ROWS, JOINS))
    if rows < FEWEST_ROWS * case.steps or joins < case.steps:
        return None
    joining = case.ops_named(JOINS.__contains__) & mine
    kernels = np.flatnonzero((graph.phase == DATA) & graph.on_gpu)
    if (climb(graph.scope[kernels], parent, joining) >= 0).sum() < case.steps:
        return None
    known = rows + joins + sum(name in _BETWEEN for name in names)
    nodes = (graph.phase == DATA) & ~graph.waits
    return RowsOnGpu(nodes, case.per_step(rows), known >= TAKING_SHARE * len(names))
