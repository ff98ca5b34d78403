"""Counts of a recorded step: GPU work by phase and category, calls by kind, compiled code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.costs.dtypes import CODE
from gpuprof.diagnosis.detect.compiled_code import compiled_share
from gpuprof.diagnosis.detect.compiler_names import GRAPH_LAUNCH
from gpuprof.diagnosis.idle.gaps import calls_by_cause
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.intervals import clip, union
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import BACKWARD, PHASES, RECOMPUTE
from gpuprof.timeline.startup import COMPILING, LOADING
from gpuprof.tracefile.trace import ABSENT, I64, KERNEL, NO_TEXT, OP, Trace
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.costs.roofline import Roofline
    from gpuprof.timeline.timeline import Timeline

KNOWN_FLOPS_SHARE: Assumed[Share] = 0.9
"""Smallest share of matmul time with known FLOPs for which their sum is given."""
_BATCHED = re.compile(r"^aten::(bmm|baddbmm|matmul)")


def own_work(timeline: Timeline) -> I64:
    """Rows of the GPU work that the window's steps launched, whenever it ran, ascending: the timeline's members without
    work that was queued before.

    While the CPU runs ahead, the window begins with work of earlier steps and ends before its own is done. Counting
    both would count a part of a step twice, and a window of one step could contain a forward pass but no backward pass.
    Work whose launch was not recorded counts as queued before if it runs before all launched work of its stream; a
    stream without launched work keeps everything."""
    rows, gpu = timeline.members, timeline.trace.gpu
    pairs = np.stack([gpu.device[rows].astype(np.int64), gpu.stream[rows].astype(np.int64)], axis=1)
    _, stream = np.unique(pairs, axis=0, return_inverse=True)
    stream = stream.reshape(-1)
    launched = timeline.links.begun_ns[rows] != ABSENT
    first = np.full(int(stream.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    for one in np.unique(stream[launched]).tolist():
        first[one] = gpu.start_ns[rows[launched & (stream == one)]].min()
    return rows[launched | (gpu.start_ns[rows] >= first[stream])]


@dataclass(frozen=True, slots=True)
class Counts:
    """Means over the recorded steps, of all devices."""

    kernels: Mapping[tuple[str, str], float]
    """(phase, category) → kernels and copies."""
    kernel_ns: Mapping[tuple[str, str], float]
    """(phase, category) → their summed durations, as recorded."""
    launches: float
    graph_kernels: float
    """Kernels and copies launched by CUDA graphs."""
    compiled: float
    """Share of compiled kernels among those that a compiler writes or would fuse, 0 to 1."""
    compiling_ns: float
    """CPU time in compilers and in loading code."""
    syncs: float
    blocking_copies: float
    allocator_calls: float
    pageable_bytes: float
    product_flops: float | None
    float32_matmuls: float = 0.0
    """Matmuls with fp32 operands, in TF32 or not; 0 if shapes were not recorded."""
    checkpoint_functions: float = 0.0
    """Autograd functions of checkpointing in the backward pass; also 0 if checkpointing uses hooks."""

    def count(self, categories: tuple[str, ...] = (), phases: tuple[str, ...] = ()) -> float:
        """Kernels and copies of these categories and phases; empty means all."""
        return _sum(self.kernels, categories, phases)

    def ns(self, categories: tuple[str, ...] = (), phases: tuple[str, ...] = ()) -> float:
        """Their summed durations."""
        return _sum(self.kernel_ns, categories, phases)

    @property
    def total(self) -> float:
        return sum(self.kernels.values())


def _sum(table: Mapping[tuple[str, str], float], categories: tuple[str, ...], phases: tuple[str, ...]) -> float:
    return sum(
        value
        for (phase, category), value in table.items()
        if (not categories or category in categories) and (not phases or phase in phases)
    )


def count(timeline: Timeline, roof: Roofline | None) -> Counts:
    """Counts per step of what the window's steps launch and do."""
    trace, links, rows = timeline.trace, timeline.links, own_work(timeline)
    steps = len(timeline.steps.start_ns)
    gpu, calls = trace.gpu, trace.calls
    low, high = timeline.window
    ns = (gpu.end_ns - gpu.start_ns)[rows].clip(0)
    group = timeline.phase[rows].astype(np.int64) * len(CATEGORIES) + timeline.category[rows]
    size = len(PHASES) * len(CATEGORIES)
    pieces, times = np.bincount(group, minlength=size), np.bincount(group, weights=ns, minlength=size)
    launching = links.call[rows]
    copy, sync, allocator = calls_by_cause(timeline)
    now = (calls.start_ns >= low) & (calls.start_ns < high)
    graphs = np.append(trace.rows_named(calls.name, GRAPH_LAUNCH.search), False)
    pageable = trace.rows_named(gpu.name, lambda text: "Pageable" in text)[rows]
    return Counts(
        kernels=_keyed(pieces / steps),
        kernel_ns=_keyed(times / steps),
        launches=(len(np.unique(launching[launching >= 0])) + int((launching < 0).sum())) / steps,
        graph_kernels=float(graphs[launching].sum()) / steps,
        compiled=compiled_share(timeline),
        compiling_ns=_compiling(trace, low, high) / steps,
        syncs=float((sync & now).sum()) / steps,
        blocking_copies=float((copy & now).sum()) / steps,
        allocator_calls=float((allocator & now).sum()) / steps,
        pageable_bytes=float(gpu.bytes[rows][pageable].clip(0).sum()) / steps,
        product_flops=_matmul_flops(timeline, rows, roof),
        float32_matmuls=_float32_matmuls(timeline, rows, roof) / steps,
        checkpoint_functions=_checkpoint_functions(timeline) / steps,
    )


def _checkpoint_functions(timeline: Timeline) -> int:
    named = timeline.trace.rows_named(timeline.trace.ops.name, lambda text: "heckpoint" in text)
    return int((named & (timeline.host.op == BACKWARD)).sum())


def _keyed(values: np.ndarray) -> dict[tuple[str, str], float]:
    """(phase, category) → value, of codes `phase · categories + category`."""
    width = len(CATEGORIES)
    return {(PHASES[code // width], CATEGORIES[code % width]): float(values[code]) for code in np.flatnonzero(values)}


def _compiling(trace: Trace, low: int, high: int) -> int:
    """Time of the window in which any CPU thread compiles or loads code, ns."""
    spans = []
    for table, pattern in ((trace.ops, COMPILING), (trace.calls, LOADING), (trace.frames, COMPILING)):
        rows = trace.rows_named(table.name, pattern.search)
        spans.append((table.start_ns[rows], table.end_ns[rows]))
    start, end = (np.concatenate(parts) for parts in zip(*spans, strict=True))
    return clip(union(start, end), low, high).total


def _float32_matmuls(timeline: Timeline, rows: I64, roof: Roofline | None) -> int:
    """Kernels of matmuls whose operands are fp32."""
    if roof is None:
        return 0
    matmul = timeline.category[rows] == CATEGORIES.index("gemm")
    return int((matmul & np.isin(roof.work.dtype[rows], (CODE["fp32"], CODE["tf32"]))).sum())


def _matmul_flops(timeline: Timeline, rows: I64, roof: Roofline | None) -> float | None:
    """FLOPs of matmuls per step, without attention and recomputation; None if too few are known."""
    if roof is None:
        return None
    trace, op = timeline.trace, timeline.links.op[rows]
    # Attention's own matmuls are counted differently in different implementations.
    own = np.append(trace.rows_named(trace.ops.name, _BATCHED.search), False)[op]
    matmul = timeline.category[rows] == CATEGORIES.index("gemm")
    rows = rows[matmul & ~own & (timeline.phase[rows] != RECOMPUTE)]
    gpu = trace.gpu
    rows = rows[gpu.kind[rows] == KERNEL]
    ns = (gpu.end_ns - gpu.start_ns)[rows].clip(0).astype(np.float64)
    flops = roof.work.flops[rows]
    known = np.isfinite(flops)
    if not ns.sum() > 0 or ns[known].sum() < KNOWN_FLOPS_SHARE * ns.sum():
        return None
    return float(flops[known].sum()) / len(timeline.steps.start_ns)


def _without_waits(timeline: Timeline, own: I64) -> None:
    """Subtracts from the ops' own times their waits for the GPU, which depend on the GPU and not on the op."""
    trace, calls = timeline.trace, timeline.trace.calls
    copy, sync, _ = calls_by_cause(timeline)
    rows = np.flatnonzero(copy | sync)
    scope = timeline.nesting.innermost(calls.thread[rows], calls.start_ns[rows])
    op = climb(scope, timeline.nesting.parent, trace.ops.kind == OP)
    known = op >= 0
    np.subtract.at(own, op[known], (calls.end_ns - calls.start_ns)[rows[known]].clip(0))


@dataclass(frozen=True, slots=True)
class OpTable:
    """CPU ops by (name, phase): count and self time per step."""

    count: Mapping[tuple[str, str], float]
    ns: Mapping[tuple[str, str], float]


def op_table(timeline: Timeline) -> OpTable:
    """Ops of the window; an op's time is its self time, without nested ops and without waiting for the GPU."""
    trace, steps = timeline.trace, len(timeline.steps.start_ns)
    ops, parent = trace.ops, timeline.nesting.parent
    low, high = timeline.window
    took = (ops.end_ns - ops.start_ns).clip(0)
    own = took.copy()
    inner = np.flatnonzero((parent >= 0) & (ops.kind == OP))
    np.subtract.at(own, parent[inner], took[inner])
    _without_waits(timeline, own)
    rows = np.flatnonzero((ops.kind == OP) & (ops.start_ns >= low) & (ops.start_ns < high) & (ops.name != NO_TEXT))
    group = ops.name[rows].astype(np.int64) * len(PHASES) + timeline.host.op[rows]
    distinct, inverse = np.unique(group, return_inverse=True)
    counts, times = np.bincount(inverse), np.bincount(inverse, weights=own[rows].clip(0))
    keys = [(trace.strings[code // len(PHASES)], PHASES[code % len(PHASES)]) for code in distinct.tolist()]
    return OpTable(
        dict(zip(keys, (counts / steps).tolist(), strict=True)), dict(zip(keys, (times / steps).tolist(), strict=True))
    )
