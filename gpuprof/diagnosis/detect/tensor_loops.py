"""Loops in Python that treat one tensor after another: a norm of each gradient, an average of each weight.

torch has ops over lists of tensors for them (`torch._foreach_norm`, `clip_grad_norm_(..., foreach=True)`,
`torch._foreach_lerp_`): a few launches instead of some for each tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.diagnosis.analysis import Analysis, Change
from gpuprof.replay.graph import TRANSFER, Graph, launcher_of
from gpuprof.replay.transform import Removing, without_waits
from gpuprof.timeline.phases import BACKWARD, FORWARD, RECOMPUTE
from gpuprof.tracefile.trace import ANNOTATION, I64, Mask

FEWEST = 8
"""Tensors from which on a loop over them is worth lists."""
LONGEST = 12
"""Ops for one tensor at most."""
READ = re.compile(r"^aten::(item|is_nonzero|_local_scalar_dense|cpu)$")
LOOKS_AT = re.compile(
    r"^aten::(linalg_vector_norm|norm|abs|max|min|amax|amin|sum|mean|var|std|square|pow|isnan|isinf|isfinite|all|any"
    r"|count_nonzero|sqrt|detach|to|_to_copy|float|double|item|is_nonzero|_local_scalar_dense|cpu|ne|eq|logical_not)$"
)
"""Ops that only look at a tensor, and reads of what they find: no iteration depends on the one before."""
CHANGES = re.compile(
    r"^aten::(mul_|add_|sub_|div_|zero_|copy_|lerp_|addcmul_|addcdiv_|clamp_|neg_|sqrt_|sign_|mul|add|sub|lerp|div|sqrt"
    r"|sign|clamp|detach|to|_to_copy|zeros_like)$"
)
"""Ops that change a tensor in place, or make what it is changed by."""
IN_PLACE = re.compile(r"^aten::\w+_$")
_LOOP, _FOREACH = calibrated.OPTIMIZER_LOOP_HOST.rising, calibrated.OPTIMIZER_FOREACH_HOST.falling
HOST = tuple(loop / foreach for loop, foreach in zip(_LOOP, _FOREACH, strict=True))
"""CPU time in ops over lists, relative to a loop; of the optimizer's: fused over loop, over fused over foreach."""
PYTHON = calibrated.OPTIMIZER_LOOP_PYTHON.rising
"""The same of Python's own time."""


@dataclass(frozen=True, slots=True)
class TensorLoops:
    """Loops over tensors in all steps."""

    loop: I64
    """Per node of the graph the loop that it belongs to, with what that launches, else -1."""
    in_op: Mask
    """Of the CPU's nodes those in ops; the others are Python's."""
    tensors: int
    """Iterations a step."""
    ops: tuple[str, ...]
    """Names of the ops, the most frequent first."""

    @property
    def nodes(self) -> Mask:
        return self.loop >= 0


def reading_loops(case: Analysis) -> TensorLoops | None:
    """Loops that look at a tensor and read what they find from the GPU, at least once for each."""
    if "reading_loops" not in case.memo:
        case.memo["reading_loops"] = _find(case, LOOKS_AT, READ, anywhere=True)
    return case.memo["reading_loops"]


def changing_loops(case: Analysis) -> TensorLoops | None:
    """Loops that change tensors in place, outside of the model and of torch's own optimizers."""
    if "changing_loops" not in case.memo:
        case.memo["changing_loops"] = _find(case, CHANGES, IN_PLACE, anywhere=False)
    return case.memo["changing_loops"]


def in_lists(loops: TensorLoops, level: int) -> Change:
    """The graph with each loop as ops over lists, without waits; level 0: at best, 2: at worst. Its kernels take as
    long as before, as one."""

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
        duration[python] *= PYTHON[level]
        duration[work[kept]] = gpu_ns
        duration[source[kept]] = op_ns * HOST[level]
        return less.with_durations(duration)

    return change


def _find(case: Analysis, part: re.Pattern[str], needed: re.Pattern[str], anywhere: bool) -> TensorLoops | None:
    graph, trace = case.graph, case.trace
    ops, main = trace.ops, case.timeline.main_thread
    every = np.flatnonzero((ops.kind != ANNOTATION) & (ops.thread == main))
    above = case.timeline.nesting.parent[every]
    # Annotations around an op (a step, the optimizer's) are no op that it belongs to.
    outer = every[(above < 0) | (ops.kind[above] == ANNOTATION)]
    if not anywhere:
        outer = outer[~np.isin(case.timeline.host.op[outer], (FORWARD, BACKWARD, RECOMPUTE))]
    outer = outer[~np.append(_torch_optimizers(case), False)[case.timeline.nesting.parent[outer]]]
    outer = outer[np.argsort(ops.start_ns[outer], kind="stable")]
    names = [trace.strings[i] for i in ops.name[outer].tolist()]
    runs = list(_runs(names, part, needed))
    if not runs:
        return None
    spans = [(int(ops.start_ns[outer[begin]]), int(ops.end_ns[outer[end - 1]])) for begin, end, _ in runs]
    loop = _of_nodes(graph, spans, main)
    of_gpu = np.bincount(loop[graph.on_gpu & (loop >= 0)], minlength=len(runs))
    copied = np.bincount(loop[(graph.resource == TRANSFER) & ~graph.waits & (loop >= 0)], minlength=len(runs))
    times = np.array([(end - begin) // period for begin, end, period in runs])
    # Loops over tensors of the CPU launch nothing; copies between CPU and GPU take their time in lists, too.
    kept = (of_gpu >= times) & (anywhere | (copied == 0))
    if not kept.any():
        return None
    seen = dict[str, int]()
    for (begin, _, period), count, mine in zip(runs, times.tolist(), kept.tolist(), strict=True):
        for name in set(names[begin : begin + period]) if mine else ():
            seen[name] = seen.get(name, 0) + count
    loop[(loop >= 0) & ~kept[loop]] = -1
    in_op = np.append(ops.kind != ANNOTATION, False)[graph.scope]
    most = tuple(sorted(seen, key=lambda name: -seen[name]))
    return TensorLoops(loop, in_op, round(int(times[kept].sum()) / case.steps), most)


def _torch_optimizers(case: Analysis) -> Mask:
    return case.ops_named(re.compile(r"^Optimizer\.step#(Adam|AdamW|SGD|Adagrad)\.step").match)


def _runs(names: list[str], part: re.Pattern[str], needed: re.Pattern[str]) -> Iterator[tuple[int, int, int]]:
    """(begin, end, period) of the stretches in which the same few ops repeat, at least FEWEST times."""
    known = {name: bool(part.match(name)) for name in set(names)}
    at = 0
    while at < len(names):
        if not known[names[at]]:
            at += 1
            continue
        stop = at
        while stop < len(names) and known[names[stop]]:
            stop += 1
        yield from _repeated(names, at, stop, needed)
        at = stop


def _repeated(names: list[str], begin: int, stop: int, needed: re.Pattern[str]) -> Iterator[tuple[int, int, int]]:
    at = begin
    while at < stop:
        best = (at, 0)
        for period in range(1, min(LONGEST, (stop - at) // FEWEST) + 1):
            end = at + period
            while end < stop and names[end] == names[end - period]:
                end += 1
            whole = (end - at) // period
            some = whole >= FEWEST and any(map(needed.match, names[at : at + period]))
            if some and at + whole * period > best[0]:
                best = (at + whole * period, period)
        if best[1]:
            yield at, best[0], best[1]
            at = best[0]
        else:
            at += 1


def _of_nodes(graph: Graph, spans: list[tuple[int, int]], main: int) -> I64:
    """Per node the span that it lies in, on the main thread, with what it launches; else -1."""
    low = graph.timeline.window[0]
    begins, ends = (np.array(side, np.float64) - low for side in zip(*spans, strict=True))
    host = np.flatnonzero(graph.lane == main)
    at = np.searchsorted(begins, graph.recorded_start_ns[host], side="right") - 1
    inside = (at >= 0) & (graph.recorded_end_ns[host] <= ends[np.clip(at, 0, None)])
    loop = np.full(len(graph), -1, np.int64)
    loop[host[inside]] = at[inside]
    gpu = np.flatnonzero(graph.on_gpu)
    source = launcher_of(graph)[gpu]
    loop[gpu] = np.where(source >= 0, loop[source], -1)
    return loop
