"""Matrix multiplications that repeat an earlier one of the same operands, as marked by the recorder at the start of
each backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.costs.formulas.gemm import is_matmul
from gpuprof.diagnosis.detect.passes import backward_of
from gpuprof.record.phases.phase_names import AGAIN_RANGE
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.timeline.nesting import climb
from gpuprof.tracefile.trace import ANNOTATION, OP, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

_MODULE = "nn.Module: "


@dataclass(frozen=True, slots=True)
class RepeatedMatmuls:
    """Multiplications whose result is known already, with their backward passes."""

    nodes: Mask
    count: int
    modules: tuple[str, ...]
    """Classes of the modules around them; empty if the recording has no module ranges."""


def find_repeated_matmuls(case: Analysis) -> RepeatedMatmuls | None:
    """The marked multiplications that are in the trace; None if there is none."""
    ops, trace = case.trace.ops, case.trace
    low, high = case.timeline.window
    marked = trace.rows_named(ops.name, lambda text: text.startswith(AGAIN_RANGE)) & (ops.kind == ANNOTATION)
    matmuls = case.ops_named(is_matmul) & (ops.kind == OP) & (ops.forward_thread <= 0) & (ops.start_ns >= low)
    found = np.zeros(len(ops), bool)
    for mark in np.flatnonzero(marked & (ops.start_ns >= low) & (ops.start_ns < high)).tolist():
        numbers = trace.strings[int(ops.name[mark])].removeprefix(AGAIN_RANGE).split(",")
        wanted = np.array([int(one) for one in numbers if one.isdigit()], np.int64)
        found |= matmuls & (ops.thread == ops.thread[mark]) & (ops.end_ns <= ops.start_ns[mark]) & np.isin(
            ops.sequence, wanted
        )  # fmt: skip
    rows = case.outermost(found)
    if not len(rows):
        return None
    forward = Stretches.of(ops, rows)
    graph = case.graph
    inside = (nodes_in(graph, forward) >= 0) | (nodes_in(graph, backward_of(case, forward)) >= 0)
    nodes = inside & ~graph.waits
    if not nodes.any():
        return None
    parent = case.timeline.nesting.parent
    around = climb(rows, parent, case.ops_named(lambda name: name.startswith(_MODULE)))
    names = {trace.strings[int(ops.name[row])].removeprefix(_MODULE) for row in around[around >= 0].tolist()}
    return RepeatedMatmuls(nodes, len(rows), tuple(sorted({name.rsplit("_", 1)[0] for name in names})))
