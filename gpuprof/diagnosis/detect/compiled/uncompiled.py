"""A compiled model as it would run without torch.compile: op by op, at the pace of this CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import breaks as calibrated
from gpuprof.calibration import compile as compiling
from gpuprof.diagnosis.detect.compiled.compiled_regions import REGION, graph_calls, ops_of_calls
from gpuprof.diagnosis.detect.compiled.generated_code import GENERATED
from gpuprof.diagnosis.detect.compiler_names import COMPILED
from gpuprof.diagnosis.detect.passes import backward_of
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.tracefile.run_folder.compiler import Compiler
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

LOOKUP = "TorchDynamo Cache Lookup"
"""Range in which Dynamo evaluates guards."""
MATMULS = frozenset({"aten::mm", "aten::addmm", "aten::bmm"})
MOST_UNKNOWN: Assumed[Share] = 0.5
"""Largest share of graph calls whose number of ops is unknown; they count as the others do on average."""


@dataclass(frozen=True, slots=True)
class Uncompiled:
    """What changes if the model is not compiled; masks are over the nodes of the graph."""

    ops: float
    """Ops of the graphs that forward passes call, in the recorded steps."""
    launch_ns: float
    """CPU time of a matrix multiplication in generated code, ns: the median."""
    called: Mask
    """CPU work of calls of compiled graphs, forward and backward."""
    around: Mask
    """CPU work between them that Dynamo does: guards, and Python."""
    kernels: Mask
    """Kernels that Inductor generated."""

    def without(self, way: int) -> Change:
        """The graph with these ops run one by one; `way` 0: at best, 1: as expected, 2: at worst."""

        def change(graph: Graph) -> Graph:
            duration = graph.duration_ns.copy()
            now = float(duration[self.called].sum())
            if now > 0:
                duration[self.called] *= (
                    self.ops * calibrated.EAGER_OP.rising[way] * self.launch_ns / compiling.HOST.value / now
                )
            duration[self.around] *= calibrated.STAYS.rising[way]
            duration[self.kernels] *= calibrated.EAGER_GPU.rising[way]
            return graph.with_durations(duration)

        return change


def uncompiled(case: Analysis) -> Uncompiled | None:
    """The model without torch.compile; None if the run did not record the ops of what it compiled, or if its graphs
    hold no matrix multiplication that shows the pace of the CPU."""
    compiler = case.run.compiler if case.run else None
    if compiler is None:
        return None
    rows, function, version = graph_calls(case)
    counts = _ops_of_calls(case, compiler, rows, function, version)
    known = counts > 0
    if known.sum() <= MOST_UNKNOWN * len(rows):
        return None
    graph, ops = case.graph, case.trace.ops
    host = (graph.lane >= 0) & ~graph.waits
    matmul = np.append(case.ops_named(MATMULS.__contains__) & case.ops_within(case.ops_named(GENERATED.search)), False)
    own = np.bincount(graph.scope[host & matmul[graph.scope]], weights=graph.duration_ns[host & matmul[graph.scope]])
    if not own.any():
        return None
    calls = Stretches.of(ops, rows)
    called = host & ((nodes_in(graph, calls) >= 0) | (nodes_in(graph, backward_of(case, calls)) >= 0))
    dynamo = case.nodes_within(case.ops_named(lambda name: name == LOOKUP or bool(REGION.search(name))))
    eager = case.nodes_within(case.ops_named(lambda name: name.startswith("aten::")))
    return Uncompiled(
        ops=float(counts.sum()) * len(rows) / float(known.sum()),
        launch_ns=float(np.median(own[own > 0])),
        called=called,
        around=host & dynamo & ~called & ~eager,
        kernels=case.nodes_of_gpu(case.trace.rows_named(case.trace.gpu.name, COMPILED.search)) & graph.on_gpu,
    )


def _ops_of_calls(case: Analysis, compiler: Compiler, rows: I64, function: I64, version: I64) -> F64:
    """Per call of a compiled graph its number of ops; 0: unknown. Where only those of a function's largest graph are
    known, a version that launches fewer kernels has fewer in proportion."""
    ops, graph = case.trace.ops, case.graph
    calls = Stretches.of(ops, rows)
    of_call = nodes_in(graph, calls)
    kernels = np.bincount(of_call[graph.on_gpu & (of_call >= 0)], minlength=len(rows)).astype(np.float64)
    found, exact = ops_of_calls(compiler, function, version)
    for number in np.unique(function).tolist():
        mine = function == number
        most = kernels[mine].max()
        if most:
            found[mine & ~exact] *= kernels[mine & ~exact] / most
    return found
