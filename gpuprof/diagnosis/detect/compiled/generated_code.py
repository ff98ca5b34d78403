"""What calls of generated code take the CPU: up to their first launch and after their last, in between, and to compute
on the CPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.compiled.compiled_passes import waiting
from gpuprof.replay.graph import TRANSFER, launcher_of
from gpuprof.timeline.nesting import climb
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import F64, I64, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

GENERATED = re.compile(r"CompiledFxGraph")
"""Range around the generated code of a compiled graph, which launches its kernels."""


@dataclass(frozen=True, slots=True)
class GeneratedCode:
    """The calls of generated code; masks are over the nodes of the graph."""

    inside: Mask
    """Its work, on the CPU and on the GPU."""
    call: I64
    """Per CPU node of it the row of the range of its call; -1 elsewhere."""
    entering: Mask
    """CPU work before the first launch of a call and after its last: arguments, checks of their sizes, memory."""
    computing: Mask
    """Work that computes on the CPU: what follows a wait for a copy and no longer launches anything; and all of a call
    without GPU work."""
    launch_ns: float
    """CPU time per kernel that it launches, from the first launch of a call to its last, ns."""


@remembered
def generated_code(case: Analysis) -> GeneratedCode:
    """The calls of generated code in a recording; none where nothing was compiled."""
    graph, named = case.graph, case.ops_named(GENERATED.search)
    inside = case.nodes_within(named)
    on_cpu = inside & (graph.lane >= 0)
    host = on_cpu & ~graph.waits
    call = np.full(len(graph), -1, np.int64)
    call[on_cpu] = climb(graph.scope[on_cpu], case.timeline.nesting.parent, named)
    started, rows = graph.recorded_start_ns, len(case.trace.ops)
    source = launcher_of(graph)
    anything, work = (
        each[(each >= 0) & (call[each] >= 0)]
        for each in (source[graph.on_gpu], source[graph.on_gpu & (graph.resource != TRANSFER)])
    )
    first, last = (
        _extreme(np.minimum, call, started, anything, rows),
        _extreme(np.maximum, call, started, anything, rows),
    )
    waited = _extreme(np.minimum, call, started, np.flatnonzero(on_cpu & waiting(case)), rows)
    since = np.where(np.isinf(first), -np.inf, np.maximum(_extreme(np.maximum, call, started, work, rows), waited))
    computing = host & (started > since[call])
    entering = host & ((started < first[call]) | (started > last[call])) & ~computing
    launches = max(int((graph.on_gpu & inside).sum()), 1)
    return GeneratedCode(
        inside=inside,
        call=call,
        entering=entering,
        computing=computing,
        launch_ns=float(graph.duration_ns[host & ~entering & ~computing].sum()) / launches,
    )


def _extreme(of: np.ufunc, call: I64, started: F64, nodes: I64, rows: int) -> F64:
    """Per call when the first (minimum) or last (maximum) of some nodes began; infinite where it has none."""
    found = np.full(rows, np.inf if of is np.minimum else -np.inf)
    of.at(found, call[nodes], started[nodes])
    return found
