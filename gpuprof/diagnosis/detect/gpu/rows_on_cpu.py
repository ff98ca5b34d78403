"""A change of the graph that computes loops over the rows of small tensors on the CPU."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import loops as calibrated
from gpuprof.diagnosis.detect.gpu.replace_work import replacement_of, with_replacement
from gpuprof.diagnosis.detect.loops.small_op_loops import SmallLoops
from gpuprof.replay.stretches import nodes_in

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change


def computed_on_cpu(case: Analysis, loops: SmallLoops) -> tuple[Change, Change, Change]:
    """The graph with these loops on the CPU, at best, as expected and at worst: no kernels, and for each of them an op
    on a small array, with copies of the arrays before and after."""
    graph, count = case.graph, len(loops.rounds)
    group = nodes_in(graph, loops.stretches)
    kernels = np.bincount(group[(group >= 0) & graph.on_gpu], minlength=count)
    nothing = np.zeros(count)

    def change(level: int) -> Change:
        host_ns = kernels * calibrated.ROW_OP_NS.rising[level] + calibrated.ROW_COPIES_NS.rising[level]
        new = replacement_of(graph, group, host_ns.astype(np.float64), nothing, nothing.astype(np.int64))
        return partial(with_replacement, replacement=new)

    return change(0), change(1), change(2)
