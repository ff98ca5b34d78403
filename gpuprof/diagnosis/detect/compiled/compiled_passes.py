"""The forward and backward passes as a compiler would rewrite them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import compile as calibrated
from gpuprof.diagnosis.detect.compiled.opaque_functions import opaque_nodes
from gpuprof.diagnosis.detect.compiled_code import COMPILED_SHARE, FUSABLE, compiled_ranges, compiled_share
from gpuprof.diagnosis.detect.compiler_names import COMPILED
from gpuprof.diagnosis.detect.loops.loops_over_rows import loops_over_rows
from gpuprof.diagnosis.detect.loops.small_op_loops import find_small_loops
from gpuprof.diagnosis.detect.passes import differentiates_gradients, shapes_in
from gpuprof.diagnosis.detect.torch_version import is_before_2
from gpuprof.diagnosis.quarantine import COMPILES_ITSELF, READS_MASK
from gpuprof.projection.changes.batch import ACCUMULATE
from gpuprof.replay.graph import COPY, SYNC, Graph, launcher_of
from gpuprof.replay.stretches import nodes_in
from gpuprof.replay.transform import Removing
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import BACKWARD, FORWARD, RECOMPUTE
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE, F64, I64, NO_TEXT, Mask
from gpuprof.units import Assumed, Entries

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.detect.pair.facts import Facts

REWRITTEN = (*FUSABLE, "triton_fused", "gather/scatter/index", "embedding", "memset", "memcpy")
"""Categories of work that differs between compiled code and eager code."""
MOST_BREAKS: Assumed[Entries] = 4
"""Most waits for a value in one forward and backward pass; more would split the graph too often. A model's own checks
of its inputs are one or two, a loop over experts or a hook per layer causes many."""
ACROSS_ROWS = re.compile(
    r"^aten::((cudnn|native|miopen)_batch_norm(_backward)?|native_group_norm|native_(layer|group)_norm_backward"
    r"|_fused_rms_norm_backward)$"
)
"""Ops that reduce across rows, or over rows too long to stay in one SM: means of a batch or group norm, gradients of a
norm's weights."""
USED_AT_ONCE = re.compile(r"^aten::((cudnn|native|miopen)_batch_norm|native_group_norm)(_backward)?$")
"""Those of them whose results the same chain uses, so that it reads its data a second time."""


@dataclass(frozen=True, slots=True)
class Passes:
    """The forward and backward work of a graph that would be compiled; masks are over its nodes."""

    host: Mask
    """CPU work of the passes."""
    kept: Mask
    """Part of it that launches work that is not fused."""
    accumulate: Mask
    """Part of it that accumulates gradients, which does not change."""
    group: I64
    """Per GPU node the chain that it is fused into, or -1."""
    rest: Mask
    """Other GPU work of the passes."""
    attention: Mask
    """Part of it that is attention without a mask."""
    speaker: I64
    """Per chain the GPU node that represents it."""
    launcher: I64
    """Per chain the CPU node that launches it."""
    across_rows: I64
    """Per chain its number of reductions across rows; each takes several kernels, whatever it is fused with."""
    read_again: I64
    """Per chain the number of them whose result the chain itself uses."""
    apart: I64
    """Per chain its number of tensors of other sizes, such as weights that are cast: the chain's own kernels cannot
    process them."""
    apart_ns: F64
    """Per chain the time of their kernels, each the longest of its size."""
    first: I64
    """First CPU node of each pass."""
    launch_ns: float
    """CPU time of one launch, ns: the median over matmuls and convolutions, as if each launched one kernel."""
    without_all: Change
    """Removes fused kernels and the CPU work that belongs to them."""
    without_fused: Change
    """The same, but keeps long CPU work."""


TOO_OLD = "this torch is older than 2.0, which brought torch.compile"
TWICE = "the program differentiates gradients (create_graph=True), and compiled code has no second derivatives"
EAGER = "torch.nn's Transformer reads its mask's values and stays eager; pass is_causal (tgt_is_causal) first"


def looks_at_mask(case: Analysis) -> bool:
    """Whether torch's own encoder or decoder waits for a value of its mask and so would not be compiled."""
    return bool((waiting(case) & case.nodes_within(case.ops_named(READS_MASK.__contains__))).any())


def passes_launch(case: Analysis) -> str:
    """`forward and backward launch`: the passes that a compiler would rewrite."""
    return "the forward pass launches" if case.workload.is_inference else "forward and backward launch"


def code_of(side: Facts) -> str:
    return "compiled code" if side.counts.compiled >= COMPILED_SHARE else "eager code"


def shapes_vary(case: Analysis) -> bool:
    """Whether the recorded steps' batches have different shapes, by what is embedded, or else multiplied."""
    ops, steps = case.trace.ops, case.timeline.steps
    for names in (("aten::embedding",), ("aten::mm", "aten::addmm")):
        rows = np.flatnonzero(case.ops_named(names.__contains__) & (ops.dims != NO_TEXT))
        step = np.searchsorted(steps.start_ns, ops.start_ns[rows], side="right") - 1
        inside = (step >= 0) & (ops.start_ns[rows] < steps.end_ns[np.maximum(step, 0)])
        seen = [set(ops.dims[rows[inside & (step == s)]].tolist()) for s in range(len(steps.start_ns))]
        if all(seen):
            return any(shapes != seen[0] for shapes in seen)
    return False


def passes(case: Analysis) -> Passes | None:
    """The work that would be compiled; None if it already is, or if it cannot be compiled as a whole."""
    return None if waits_too_often(case) or looks_at_mask(case) else whole_passes(case)


def waits_too_often(case: Analysis) -> bool:
    """Whether a forward and backward pass waits for the GPU more often than a compiled model may."""
    return waits_in_passes(case) > MOST_BREAKS * max(len(case.timeline.host.backward), 1)


@remembered
def whole_passes(case: Analysis) -> Passes | None:
    """The work that would be compiled if no wait split it; None if it already is, or if nothing could be fused."""
    graph, trace, links = case.graph, case.trace, case.timeline.links
    if case.stack.kind in COMPILES_ITSELF or differentiates_gradients(case):
        return None
    if compiled_share(case.timeline) >= COMPILED_SHARE or is_before_2(case):
        return None
    within, starts = within_passes(case)
    within &= ~_compiled_nodes(case) & ~opaque_nodes(case)
    if not len(starts):
        return None
    accumulate = case.nodes_within(case.ops_named(lambda text: text == ACCUMULATE))
    fusable = np.append(case.category(*FUSABLE), False)[graph.gpu_row] & graph.on_gpu & within & ~accumulate
    memcpy = np.append(trace.rows_named(trace.gpu.name, lambda text: "DtoD" in text), False)[graph.gpu_row]
    fusable |= memcpy & graph.on_gpu & within & ~accumulate
    fusable &= ~_by_library(case)
    group, speaker, launcher = _chains(graph, fusable)
    if not len(speaker):
        return None
    host = within & (graph.lane >= 0) & ~graph.waits
    left = graph.gpu_row[graph.on_gpu & within & (group < 0)]
    launching = np.zeros(len(trace.ops) + 1, bool)
    launching[links.op[left]] = True
    launching[-1] = False
    matmuls = np.zeros(len(trace.ops) + 1, bool)
    rows = left[case.category("gemm")[left]]
    matmuls[links.op[rows]] = True
    matmuls[-1] = False
    mine = host & matmuls[graph.scope]
    if not mine.any():
        return None
    each = _single_launches(case, mine)
    kept = host & launching[graph.scope] & ~accumulate
    gone = host & ~kept & ~accumulate
    gone[launcher] = False
    fused = group >= 0
    fused[speaker] = False
    apart, apart_ns = _apart(case, group, len(speaker))
    return Passes(
        host=host,
        kept=kept,
        accumulate=host & accumulate,
        group=group,
        rest=graph.on_gpu & within & (group < 0),
        attention=_unmasked_attention(case) & within & (group < 0),
        speaker=speaker,
        launcher=launcher,
        across_rows=_reductions(case, group, len(speaker), case.ops_named(ACROSS_ROWS.search) | _sums(case)),
        read_again=_reductions(case, group, len(speaker), case.ops_named(USED_AT_ONCE.search)),
        apart=apart,
        apart_ns=apart_ns,
        first=starts,
        launch_ns=float(np.median(each)),
        without_all=Removing(gone | fused),
        without_fused=Removing((gone & ~(host & (graph.duration_ns > calibrated.LASTING_NS.value))) | fused),
    )


def _single_launches(case: Analysis, host: Mask) -> F64:
    """CPU time of each op of the mask if it launched one kernel, ns: its own work, and its calls / its kernels. The
    same call may launch a kernel's helpers, conversions of layouts for instance, but a generated kernel has none."""
    graph, links, ops = case.graph, case.timeline.links, len(case.trace.ops)
    launches = np.bincount(links.op[graph.gpu_row[graph.on_gpu]] + 1, minlength=ops + 1)[1:]
    own, calls = (
        np.bincount(graph.scope[mine], weights=graph.duration_ns[mine], minlength=ops)
        for mine in (host & (graph.call < 0), host & (graph.call >= 0))
    )
    each: F64 = own + calls / np.maximum(launches, 1)
    return each[each > 0]


def _by_library(case: Analysis) -> Mask:
    """GPU work of ops that launch a matmul or convolution: compiled code calls the same library function, which
    launches all of its kernels as before, conversions of layouts among them."""
    row, op = case.graph.gpu_row, case.timeline.links.op
    calls = np.zeros(len(case.trace.ops) + 1, bool)
    calls[op[case.category("gemm", "grouped_gemm")]] = True
    calls[-1] = False
    return case.graph.on_gpu & np.append(calls[op], False)[row]


def _sums(case: Analysis) -> Mask:
    """Sums of the backward pass, which are gradients of biases."""
    backward = case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE))
    return case.ops_named(lambda name: name == "aten::sum") & case.ops_within(backward)


def _reductions(case: Analysis, group: I64, chains: int, reducing: Mask) -> I64:
    """Per chain its number of these ops."""
    graph = case.graph
    named = np.append(case.ops_within(reducing), False)
    rows = np.flatnonzero((group >= 0) & named[graph.scope])
    op = climb(graph.scope[rows], case.timeline.nesting.parent, reducing)
    pairs = np.unique(np.stack([group[rows], op]), axis=1)
    return np.bincount(pairs[0], minlength=chains)


def _apart(case: Analysis, group: I64, chains: int) -> tuple[I64, F64]:
    """Per chain the sizes of its tensors that do not divide the largest one, and the time of the longest kernel of each
    of these sizes: one loop over the largest tensor cannot hold them. A size that divides it is of rows, of columns or
    of a part."""
    graph = case.graph
    rows = np.flatnonzero(group >= 0)
    size = _elements(case, case.timeline.links.op[graph.gpu_row[rows]])
    largest = np.zeros(chains, np.int64)
    np.maximum.at(largest, group[rows], size)
    other = (size > 1) & (largest[group[rows]] % np.maximum(size, 1) != 0)
    pairs, which = np.unique(np.stack([group[rows[other]], size[other]]), axis=1, return_inverse=True)
    took = np.zeros(pairs.shape[1])
    np.maximum.at(took, which.ravel(), graph.duration_ns[rows[other]])
    ns: F64 = np.bincount(pairs[0], weights=took, minlength=chains).astype(np.float64)
    return np.bincount(pairs[0], minlength=chains), ns


def _elements(case: Analysis, op: I64) -> I64:
    """Elements of the largest tensor that each op is given, or that an op around it is; 0 if no shapes are known."""
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    known: dict[int, int] = {}

    def of(row: int) -> int:
        while row >= 0:
            text = int(ops.dims[row])
            if text not in known:
                shapes = [] if text == NO_TEXT else shapes_in(case, text)
                known[text] = max((math.prod(one) for one in shapes if one is not None), default=0)
            if known[text]:
                return known[text]
            row = int(parent[row])
        return 0

    different, which = np.unique(op, return_inverse=True)
    return np.array([of(row) for row in different.tolist()], np.int64)[which]


def _compiled_nodes(case: Analysis) -> Mask:
    """Nodes in ranges of compiled code, and kernels generated by Inductor."""
    trace = case.trace
    return case.nodes_within(compiled_ranges(case.timeline)) | (
        case.nodes_of_gpu(trace.rows_named(trace.gpu.name, COMPILED.search)) & case.graph.on_gpu
    )


def waits_in_passes(case: Analysis) -> int:
    """Number of waits for the GPU inside forward and backward passes."""
    return int((waiting(case) & within_passes(case)[0]).sum())


def waiting(case: Analysis) -> Mask:
    """Nodes that wait for GPU work or a copy."""
    graph = case.graph
    found = np.zeros(len(graph), bool)
    found[graph.edges.target[np.isin(graph.edges.kind, (SYNC, COPY))]] = True
    return found


def compiled(found: Passes, way: int, launched: float = 1.0) -> Change:
    """The graph with its passes compiled; `way` 0: at best, 1: as expected, 2: at worst.

    launched: share of launches that the CPU still makes one by one; the others are in CUDA graphs.
    """

    def change(graph: Graph) -> Graph:
        longest = _longest(found, graph.duration_ns)
        graph = (found.without_fused if way else found.without_all)(graph)
        duration = graph.duration_ns.copy()
        duration[found.kept] *= calibrated.HOST.rising[way] * launched
        again = 1.0 + calibrated.AGAIN.rising[way] * found.read_again
        duration[found.speaker] = longest * calibrated.FUSED.rising[way] * again + found.apart_ns
        launches = calibrated.CHAINS_LEFT.value + calibrated.ACROSS.rising[way] * found.across_rows + found.apart
        duration[found.launcher] = found.launch_ns * calibrated.HOST.rising[way] * launches * launched
        duration[found.rest] *= calibrated.REST.rising[way]
        duration[found.attention] *= calibrated.ATTENTION.rising[way] / calibrated.REST.rising[way]
        duration[found.first] += calibrated.PASS_NS.rising[way]
        return graph.with_durations(duration)

    return change


def _unmasked_attention(case: Analysis) -> Mask:
    """GPU work of attention, if no mask was passed to most of it (or shapes were not recorded)."""
    ops, graph = case.trace.ops, case.graph
    rows = np.flatnonzero(case.ops_named(lambda text: text == "aten::scaled_dot_product_attention"))
    masked = 0
    for dims, count in zip(*np.unique(ops.dims[rows], return_counts=True), strict=True):
        shapes = shapes_in(case, int(dims))
        masked += int(count) if len(shapes) > 3 and shapes[3] else 0
    if 2 * masked > len(rows):
        return np.zeros(len(graph), bool)
    return np.append(case.category("attention"), False)[graph.gpu_row] & graph.on_gpu


def _longest(found: Passes, duration_ns: F64) -> F64:
    """Time of each chain's longest kernel; 0 for chains that another change removed."""
    longest = np.zeros(len(found.speaker))
    rows = np.flatnonzero(found.group >= 0)
    np.maximum.at(longest, found.group[rows], duration_ns[rows])
    return longest


def _chains(graph: Graph, fusable: Mask) -> tuple[I64, I64, I64]:
    """Chains of neighbouring kernels that fuse: (chain per node, last node per chain, node that launches it)."""
    group = np.full(len(graph), -1, np.int64)
    rows = np.flatnonzero(graph.on_gpu)
    if not len(rows):
        return group, rows, rows
    may, phase = fusable[rows], graph.phase[rows]
    begins = may & ~np.append(False, may[:-1] & (phase[1:] == phase[:-1]))
    number = np.cumsum(begins) - 1
    group[rows[may]] = number[may]
    speaker = np.zeros(int(begins.sum()), np.int64)
    speaker[number[may]] = rows[may]
    source = launcher_of(graph)
    launched = source[speaker] >= 0
    if not launched.all():
        # A chain whose launch was not recorded is left unchanged.
        renumber = np.where(launched, np.cumsum(launched) - 1, -1)
        group = np.where(group >= 0, renumber[group], -1)
        speaker = speaker[launched]
    return group, speaker, source[speaker]


def within_passes(case: Analysis) -> tuple[Mask, I64]:
    """(nodes of the model's forward and backward passes, first CPU node of each pass).

    A forward pass begins with its first embedding or matmul: earlier work prepares the batch, or belongs to the
    previous step. Loops over rows of tensors without gradients (advantages of a rollout) are the program's own."""
    graph, low = case.graph, case.timeline.window[0]
    backward = case.timeline.host.backward
    begin, end = (x.astype(np.float64) - low for x in (backward.start, backward.end))
    within = np.isin(graph.phase, (BACKWARD, RECOMPUTE))
    forward = graph.phase == FORWARD
    host = (graph.lane >= 0) & ~graph.waits
    source = launcher_of(graph)
    model = np.append(case.category("gemm", "grouped_gemm"), False)[graph.gpu_row] & graph.on_gpu
    model |= case.nodes_within(case.ops_named(lambda text: text == "aten::embedding")) & graph.on_gpu
    model = source[model & forward]
    model = model[model >= 0]
    since = np.full(len(begin) + 1, np.inf)
    np.minimum.at(
        since, np.searchsorted(end, graph.recorded_start_ns[model], side="right"), graph.recorded_start_ns[model]
    )
    moment = np.where(source >= 0, graph.recorded_start_ns[source], graph.recorded_start_ns)
    within |= forward & (moment >= since[np.searchsorted(end, moment, side="right")])
    loops = find_small_loops(case)
    if loops is not None:
        within &= nodes_in(graph, loops.stretches.some(loops_over_rows(case, loops))) < 0
    found = []
    for phase, moments in ((FORWARD, since[np.isfinite(since)]), (BACKWARD, begin)):
        rows = np.flatnonzero(host & within & (graph.phase == phase))
        rows = rows[np.argsort(graph.recorded_start_ns[rows], kind="stable")]
        k = np.searchsorted(graph.recorded_start_ns[rows], moments, side="left")
        found.append(rows[k[k < len(rows)]])
    return within, np.unique(np.concatenate(found))
