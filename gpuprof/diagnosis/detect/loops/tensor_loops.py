"""Python loops that inspect one tensor after another and read the result, such as the norm of each gradient. torch can
do this with ops over lists of tensors (`torch._foreach_norm`, `clip_grad_norm_(..., foreach=True)`): a few launches
instead of several per tensor, and one read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.diagnosis.detect.loops.small_op_loops import find_small_loops, ops_of
from gpuprof.diagnosis.result.fix import Code, call
from gpuprof.replay.graph import TRANSFER, Graph, launcher_of
from gpuprof.replay.stretches import nodes_in
from gpuprof.replay.transform import Removing, without_waits
from gpuprof.timeline.phases import FORWARD
from gpuprof.tracefile.trace import ANNOTATION, I64, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

LISTS = call("torch.stack", Code("torch._foreach_norm(tensors)")) + "  # the norm of each: a few launches, read once"
"""The fix: an op over a list of tensors."""
READ = re.compile(r"^aten::(item|is_nonzero|_local_scalar_dense|cpu)$")
LOOKS_AT = re.compile(
    r"^aten::(linalg_vector_norm|norm|abs|max|min|amax|amin|sum|mean|var|std|square|pow|isnan|isinf|isfinite|all|any"
    r"|count_nonzero|sqrt|detach|to|_to_copy|float|double|item|is_nonzero|_local_scalar_dense|cpu|ne|eq|logical_not)$"
)
"""Ops that only inspect a tensor, and reads of their results: iterations do not depend on each other."""
CHANGES = re.compile(r"^aten::(mul_|add_|sub_|div_|zero_|lerp_|clamp_|detach)$")
"""Ops that change a tensor in place, as clipping does after the norms."""
HOST = tuple(
    loop / foreach
    for loop, foreach in zip(
        calibrated.OPTIMIZER_LOOP_HOST.rising, calibrated.OPTIMIZER_FOREACH_HOST.falling, strict=True
    )
)
"""CPU time of ops over lists / of a loop, from the optimizer's: (fused / loop) / (fused / foreach)."""


@dataclass(frozen=True, slots=True)
class TensorLoops:
    """Loops over tensors in all steps."""

    loop: I64
    """Loop of each node, including what the loop launches, or -1."""
    in_op: Mask
    """CPU nodes inside ops; the others are Python."""
    tensors: int
    """Number of tensors inspected per step."""
    ops: tuple[str, ...]
    """Names of the ops of the longest loop."""
    which: Mask
    """Mask over the loops of `find_small_loops`."""

    @property
    def nodes(self) -> Mask:
        return self.loop >= 0


def reading_loops(case: Analysis) -> TensorLoops | None:
    """Loops that inspect GPU tensors and read the results, and if there are any, also loops that change tensors in
    place outside the forward pass."""
    if "reading_loops" not in case.memo:
        case.memo["reading_loops"] = _reading_loops(case)
    return case.memo["reading_loops"]


def _reading_loops(case: Analysis) -> TensorLoops | None:
    loops, graph = find_small_loops(case), case.graph
    if loops is None:
        return None
    names = [ops_of(case, loops, i) for i in range(len(loops.rounds))]
    reads = np.array([all(map(LOOKS_AT.match, mine)) and any(map(READ.match, mine)) for mine in names], bool)
    changes = np.array([all(map(CHANGES.match, mine)) and mine != ["aten::detach"] for mine in names], bool)
    loop = nodes_in(graph, loops.stretches)
    count = len(loops.rounds)
    known = loop >= 0
    launched = np.bincount(loop[known & graph.on_gpu], minlength=count)
    copied = np.bincount(loop[known & (graph.resource == TRANSFER) & ~graph.waits], minlength=count)
    forward = np.bincount(loop[known & (graph.phase == FORWARD)], minlength=count)
    # Loops over CPU tensors launch nothing; copies between CPU and GPU do not get faster in lists.
    reads &= launched >= loops.rounds
    which = reads | (changes & (launched >= loops.rounds) & (copied == 0) & (forward == 0))
    if not reads.any():
        return None
    loop = np.where(known & which[np.clip(loop, 0, None)], loop, -1)
    in_op = np.append(case.trace.ops.kind != ANNOTATION, False)[graph.scope]
    longest = int(np.argmax(np.where(reads, loops.rounds, 0)))
    tensors = round(int(loops.rounds[reads].sum()) / case.steps)
    return TensorLoops(loop, in_op, tensors, tuple(names[longest]), which)


def in_lists(loops: TensorLoops, level: int) -> Change:
    """The graph with each loop as ops over lists, without waits; level 0: at best, 2: at worst. The single new kernel
    takes as long as the loop's kernels together."""

    def change(graph: Graph) -> Graph:
        work = np.flatnonzero(loops.nodes & graph.on_gpu)
        source = launcher_of(graph)[work]
        work, source = work[source >= 0], source[source >= 0]
        if not len(work):
            return graph
        host = loops.nodes & ~graph.on_gpu & ~graph.waits
        ops, python = host & loops.in_op, host & ~loops.in_op
        count = int(loops.loop.max()) + 1
        last = np.full(count, -1, np.int64)
        last[loops.loop[work]] = np.arange(len(work))
        kept = last[last >= 0]
        gone = ops.copy()
        gone[work] = True
        gone[work[kept]] = gone[source[kept]] = False
        own = loops.loop[work[kept]]
        gpu_ns, op_ns = (
            np.bincount(loops.loop[rows], weights=graph.duration_ns[rows], minlength=count)[own]
            for rows in (work, np.flatnonzero(ops))
        )
        less = Removing(gone)(without_waits(graph, loops.nodes & graph.waits))
        duration = less.duration_ns.copy()
        duration[python] *= calibrated.OPTIMIZER_LOOP_PYTHON.rising[level]
        duration[work[kept]] = gpu_ns
        duration[source[kept]] = op_ns * HOST[level]
        return less.with_durations(duration)

    return change
