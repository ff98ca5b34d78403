"""4-bit or 8-bit weights are unpacked again for every matmul."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration import recompute as recompute_calibrated
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.pair.candidates import Candidate, claim_model
from gpuprof.diagnosis.detect.pair.quantities import kernel_counts, kernel_ns
from gpuprof.diagnosis.detect.pair.signs import fewer_kernels
from gpuprof.diagnosis.detect.passes import siblings
from gpuprof.diagnosis.detect.repeated.recomputed_passes import free_bytes
from gpuprof.diagnosis.result.fix import as_fix, call
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.replay.transform import removed
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import FORWARD
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE, Mask
from gpuprof.units import Assumed, Convention, Ops, Ratio

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.diagnosis.detect.pair.facts import Facts

MATMULS = frozenset({"aten::linear", "aten::matmul", "aten::mm", "aten::addmm", "aten::bmm"})
PACKED_BYTES: Convention[Ratio] = 0.53
HALF_BYTES: Convention[Ratio] = 2.0
"""Bytes of a 4-bit weight with its blocks' scales, and of a bf16 weight."""
OPS_BEFORE: Assumed[Ops] = 2
OPS_BEHIND: Assumed[Ops] = 3
"""Ops around the unpacking kernel that belong to it: the cast and view before, the cast and clone after."""

PAGE = Page(
    id="dequantize",
    title="Quantised weights are unpacked for every matrix multiplication",
    means="""
QLoRA keeps the model in 4 bits to save memory. Every matrix multiplication first unpacks its weight to bf16: once
forward, once backward, and once more with gradient checkpointing. For short batches that traffic, with the kernels
and the Python code around it, takes longer than the matrix multiplications. If the weights fit into the GPU in bf16,
LoRA on them is faster and more accurate.
""",
    detected="""
Kernels that dequantise, with the ops that launch them. The size of the weights is estimated from what one forward
pass unpacks. Four times the packed weights must fit into free memory: the GPU's memory minus the run's peak, or minus
the packed weights if no peak was recorded, as the fix then says.
""",
    gain="""
The unpacking kernels, and the CPU work of the quantised layers except their matrix multiplications, are removed from
the graph: in the forward pass from the view in front of the layer to the copy after it, in the backward pass the
whole backward of the layer.
""",
    wrong="""
A GPU filled by bf16 weights has no room for the batch. Larger batches also make unpacking cheaper per token, and need
no more memory for weights. Models that only fit when quantised have to stay quantised.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes bf16 weights if they fit."""
    kernels = _kernels(case)
    if not kernels.any():
        return
    weights = unpacked_weights(case, kernels)
    extra = weights * (HALF_BYTES - PACKED_BYTES)
    free, size = free_bytes(case)
    room = (
        free
        if free is not None
        else recompute_calibrated.USABLE_SHARE.value * size - weights * PACKED_BYTES
        if size is not None
        else None
    )
    if room is not None and extra > room:
        return
    graph = case.graph
    gone = _gone(case, kernels)
    gpu = gone & graph.on_gpu
    host_ns = case.per_step(float(graph.duration_ns[gone & ~graph.on_gpu].sum()))
    text = (
        f"{case.per_step(int(case.nodes_of_gpu(kernels).sum())):,.0f} kernels {case.unit.a} unpack weights: "
        f"{duration(case.per_step(float(graph.duration_ns[gpu].sum())))} of GPU and {duration(host_ns)} of CPU time"
    )
    known = f", of {free / 2**30:,.0f} GiB that are free" if free is not None else "; free memory was not recorded"
    needs = f"\n# {extra / 2**30:,.1f} GiB more for the weights{known}"
    yield Proposal(
        title="bf16 weights instead of quantised ones",
        evidence=spans(case, text, gone),
        fix=case.stack.fix(
            (case.stack.loaded(dtype="bfloat16") or as_fix("the weights in bfloat16,"))
            + " without quantization_config",
            trl=case.stack.setting({"model_init_kwargs": {"dtype": "bfloat16"}}, note=" without quantization_config"),
            unsloth=call("FastLanguageModel.from_pretrained", ..., load_in_4bit=False, load_in_16bit=True),
        )
        + needs,
        change=partial(removed, nodes=gone),
        worst=partial(_mostly, nodes=gone),
        changes="weights are bf16 instead of quantised",
    )


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Weights that one side does not unpack, or unpacks less often."""
    kind = ("dequantize",)
    pieces, took = kernel_counts(a, b, kind), kernel_ns(a, b, kind)
    # The same weights unpacked by fewer kernels take the same time: that is another change.
    if pieces.fell() and took.fell(least=0.0):
        yield Candidate(
            PAGE.id,
            "unpacking quantised weights",
            f"kernels that unpack weights: {pieces} {a.unit.a}, {took.ms} ms of GPU time; "
            f"kernels in all: {kernel_counts(a, b)}",
            claim_model((*kind, "elementwise", "cast/copy", "memcpy"), fewer_kernels(a, b)),
            pieces.more,
        )


def _mostly(graph: Graph, nodes: Mask) -> Graph:
    shorter = removed(graph, nodes)
    return shorter.with_durations(
        np.where(nodes & ~graph.on_gpu, calibrated.QUANTISED_HOST_LEFT.value * graph.duration_ns, shorter.duration_ns)
    )


def _kernels(case: Analysis) -> Mask:
    """GPU events of the window that only unpack, not matmuls that read packed weights themselves."""
    member = np.zeros(len(case.trace.gpu), bool)
    member[case.timeline.members] = True
    unpack = member & case.category("dequantize")
    if case.roofline is not None:
        unpack &= ~(np.nan_to_num(case.roofline.work.flops) > 0)
    return unpack


def unpacked_weights(case: Analysis, kernels: Mask) -> float:
    """Number of weights that one forward pass unpacks; 0 if the kernels' bytes are unknown."""
    if case.roofline is None:
        return 0.0
    moved = float(np.nansum(case.roofline.work.traffic_bytes[kernels & (case.timeline.phase == FORWARD)]))
    passes = max(len(case.timeline.host.backward), case.steps)
    return moved / (HALF_BYTES + PACKED_BYTES) / passes / case.devices


def _gone(case: Analysis, kernels: Mask) -> Mask:
    """Nodes that disappear with bf16 weights."""
    timeline, ops = case.timeline, case.trace.ops
    parent = timeline.nesting.parent
    gone = case.nodes_of_gpu(kernels)
    calls = np.zeros(len(case.trace.calls), bool)
    launched = timeline.links.call[kernels]
    calls[launched[launched >= 0]] = True
    gone |= case.nodes_in_calls(calls)
    quantised = case.ops_named(
        lambda name: name.startswith("bitsandbytes::") or "MatMul4Bit" in name or "dequantize" in name
    )
    kept = case.nodes_within(case.ops_named(MATMULS.__contains__))
    # Backward: the layer's autograd node is the outermost op with such a name.
    backward = quantised & case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE))
    inside = case.nodes_within(backward)
    rows, family = siblings(case)
    if len(rows):
        holds = quantised[rows]
        # Of nested ops the outer one counts.
        outer = climb(parent[rows], parent, quantised) < 0
        at = np.flatnonzero(holds & outer)
        first, last = at.copy(), at.copy()
        before = case.ops_named(lambda name: name in ("aten::to", "aten::view", "aten::t"))[rows]
        behind = case.ops_named(lambda name: name in ("aten::to", "aten::clone"))[rows]
        for _ in range(OPS_BEFORE):
            k = np.maximum(first - 1, 0)
            first = np.where(before[k] & (family[k] == family[first]), k, first)
        for _ in range(OPS_BEHIND):
            k = np.minimum(last + 1, len(rows) - 1)
            last = np.where(behind[k] & (family[k] == family[last]) & (_short(case, rows[k])), k, last)
        stretches = Stretches(ops.thread[rows[at]].astype(np.int64), ops.start_ns[rows[first]], ops.end_ns[rows[last]])
        if len(at):
            inside |= nodes_in(case.graph, stretches) >= 0
    return gone | (inside & ~kept)


def _short(case: Analysis, rows: np.ndarray) -> Mask:
    """Ops that are a copy of the layer's own result, not a cast that an adapter needs: `aten::to` that does nothing,
    or a clone."""
    ops = case.trace.ops
    clone = case.ops_named(lambda name: name == "aten::clone")[rows]
    casts = np.zeros(len(ops), bool)
    children = np.flatnonzero(case.ops_named(lambda name: name == "aten::_to_copy"))
    above = case.timeline.nesting.parent[children]
    casts[above[above >= 0]] = True
    return clone | ~casts[rows]


FINDING = Declaration(
    page=PAGE,
    find=find,
    change=change,
    synonyms=("qlora", "quantization", "4bit", "bitsandbytes", "nf4", "dequantization"),
    titles=("bf16_weights_instead_of_quantised_ones",),
)
