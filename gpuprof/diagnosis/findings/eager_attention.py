"""Attention writes its scores to memory: matmul, mask, softmax and matmul are separate ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.costs.arguments import parse
from gpuprof.costs.formulas.attention import Shape, backward_flops, forward_flops
from gpuprof.diagnosis.detect.attention.kernels_off import (
    WIDEST_HEAD,
    WIDTH_STEP,
    calls_to_remove,
    differentiated_twice,
    switched_off,
)
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.memory_remedy import MemoryRemedy
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.detect.gpu.replace_work import Replacement, replacement_of, with_replacement
from gpuprof.diagnosis.detect.pair.candidates import PASSES, Candidate, claim_model
from gpuprof.diagnosis.detect.pair.quantities import kernel_counts
from gpuprof.diagnosis.detect.pair.signs import fewer_kernels
from gpuprof.diagnosis.detect.passes import backward_of, host_ns_per_launch, without_recompute
from gpuprof.diagnosis.result.fix import Code, Fix, call, without_call
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.memory import memory_changes as changes
from gpuprof.projection.memory.memory_fixes import MemoryFix
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.timeline.phases import FORWARD, RECOMPUTE
from gpuprof.tracefile.trace import I64, NO_TEXT, OP, Mask
from gpuprof.units import Assumed, Launches, Ops, Tokens

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.diagnosis.detect.pair.facts import Facts
    from gpuprof.projection.memory.recorded_memory import RecordedMemory

SOFTMAX = frozenset({"aten::_softmax"})
MATMULS = frozenset({"aten::bmm", "aten::baddbmm"})
MASKING = frozenset({"aten::add", "aten::add_", "aten::masked_fill", "aten::masked_fill_", "aten::where"})
LEAST_QUERIES: Assumed[Tokens] = 16
"""Fewest queries: scores of shorter sequences cost nothing, and softmaxes over experts or classes are no attention."""
SOFTMAX_REACH: Assumed[Ops] = 120
"""Most ops between the softmax and either matmul, counted at all levels: mask, scale, casts, dropout and sinks are
some 40."""
FUSED_LAUNCHES: Assumed[tuple[Launches, Launches]] = (3, 6)
"""Kernels of fused attention forward and backward; cuDNN launches 1 and 5, and the heads of grouped queries may be
copied."""
CATEGORIES = ("attention", "softmax", "gemm", "elementwise", "cast/copy", "dropout", "memset")
"""Categories of work that differ if attention is fused."""

SDPA = "torch.nn.functional.scaled_dot_product_attention"

PAGE = Page(
    id="eager_attention",
    title="Attention writes all its scores to memory",
    means="""
Attention computed op by op writes a sequence × sequence matrix of scores per head and reads it back for scaling,
mask, casts, softmax, dropout and the multiplication with the values, forward and again backward. That traffic grows
with the square of the sequence length and soon exceeds everything else in the step; so does its memory. A fused
kernel (FlashAttention, cuDNN, torch's `scaled_dot_product_attention`) keeps the scores on the chip.
""",
    detected=f"""
A softmax over [batch, heads, queries, keys] with at least {LEAST_QUERIES} queries, between a batched matrix
multiplication that computes those scores and one that consumes them, and not inside torch's own attention op. Not
detected if shapes were not recorded.

Or torch's own attention op that computes its scores like this although a fused kernel takes its inputs: four
dimensions, heads up to {WIDEST_HEAD} wide in multiples of {WIDTH_STEP} with the width innermost, in bf16 or fp16, or in
fp32 with one head of keys for each of queries, and no mask, or one that is known to lie row by row in memory. Then the
program has switched the fused kernels off (`enable_flash_sdp(False)` and the like, or
`sdpa_kernel(SDPBackend.MATH)`). Programs with second derivatives of attention need that, and are left alone.
""",
    gain=f"""
The kernels between the two matrix multiplications, and their backward, are replaced by fused ones. Their time is that
of the FLOPs of attention (halved by a causal mask if a mask is added and the number of queries equals that of keys) at
{percent(calibrated.ATTENTION_FORWARD.value)} % of the tensor ceiling forward and
{percent(calibrated.ATTENTION_BACKWARD.value)} % backward, or the time for reading queries, keys and values and writing
the result, whichever is longer. Their CPU time becomes that of {FUSED_LAUNCHES[0]} launches forward and
{FUSED_LAUNCHES[1]} backward.
""",
    wrong="""
A mask that is not causal (padding within the batch) is passed on as a tensor, and the kernel does twice the work.
Models that add something to the scores that the fused kernel does not support (sinks, soft caps) need FlexAttention
or their own kernel. torch's own attention op also computes all scores where no fused kernel takes its inputs: fewer
heads of keys than of queries in fp32 or with a mask; queries, keys, values or a mask whose innermost dimension is not
contiguous in memory (T5's position bias). That is not this finding: bf16 inputs, repeated keys and values, or a
contiguous copy come first there.
""",
)


@dataclass(frozen=True, slots=True)
class Attentions:
    """Attentions of the forward pass (or its recomputation) that are computed op by op."""

    stretches: Stretches
    shapes: tuple[Shape, ...]
    size: I64
    """Bytes per element of the queries."""
    sinks: bool
    """Whether the softmax has one more key than the matmul gave: a learned sink that absorbs attention."""
    capped: bool
    """Whether scores go through tanh."""
    masked: bool
    """Whether something is added to the scores, or overwrites them, before the softmax."""
    off: int = 0
    """How many of them, the last ones, are calls of torch's own attention whose fused kernels are switched off."""


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes a fused kernel instead of one per op."""
    found = None if differentiated_twice(case) else find_attentions(case)
    if found is None or case.roofline is None:
        return
    graph, count = case.graph, len(found.stretches)
    forward = nodes_in(case.graph, found.stretches)
    backward = without_recompute(case, nodes_in(case.graph, backward_of(case, found.stretches)))
    group = np.where(forward >= 0, forward, np.where(backward >= 0, backward + count, -1))
    inside = group >= 0
    launches = np.repeat(FUSED_LAUNCHES, count)
    costs = [host_ns_per_launch(case, inside, mask) for mask in (forward >= 0, backward >= 0)]
    host_ns = launches * np.repeat(costs, count)
    has = np.bincount(group[inside & graph.on_gpu], minlength=2 * count) > 0
    matmuls = case.nodes_of_gpu(case.category("gemm"))  # a compiler fuses neither these nor attention

    def change(level: int):
        gpu_ns = np.where(has, _fused_ns(case, found, level), 0.0)
        return partial(_apply, replacement=replacement_of(graph, group, host_ns, gpu_ns, launches, matmuls))

    gpu_ns = case.per_step(float(graph.duration_ns[inside & graph.on_gpu].sum()))
    largest = max(found.shapes, key=lambda s: s.batch * s.heads * s.queries * s.keys)
    scores = largest.batch * largest.heads * largest.queries * largest.keys * int(found.size.max())
    text = (
        f"{count / case.steps:,.0f} attentions {case.unit.a} write scores of "
        f"{largest.queries:,.0f} × {largest.keys:,.0f} for "
        f"{largest.batch * largest.heads:,.0f} heads ({scores / 1e9:,.2f} GB each time): "
        f"{duration(gpu_ns)} of GPU time {case.unit.a}"
        + (f"; {found.off / case.steps:,.0f} of them with torch's fused kernels switched off" if found.off else "")
    )
    only_off = found.off == count
    yield Proposal(
        title="fused attention switched on" if only_off else "fused attention instead of eager",
        evidence=spans(case, text, inside & graph.on_gpu),
        fix=_fix(case, found),
        change=change(1),
        best=change(0),
        worst=change(2),
        claims=("attention",),
        item=_SWITCHED_OFF if only_off else None,
    )


def _absent(case: Analysis) -> str | None:
    fused = case.per_step(case.gpu_ns(case.category("attention")))
    return f"attention runs in fused kernels already ({duration(fused)} {case.unit.a})" if fused else None


ABSENT = Absent("FlashAttention or another fused attention", _absent)


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Fused attention on one side, matmuls and softmax on the other."""
    fused, scores = kernel_counts(a, b, ("attention",)), kernel_counts(a, b, ("softmax",), PASSES)
    # Fused attention has no separate softmax: one kind of kernel appears as the other disappears.
    if fused.fell() and fused.more == -scores.more:
        yield Candidate(
            PAGE.id,
            "fused attention",
            f"kernels of fused attention: {fused} {a.unit.a}, softmax kernels: {scores}",
            claim_model(CATEGORIES, fewer_kernels(a, b)),
            scores.more,
        )


_SWITCHED_OFF = (
    "scaled_dot_product_attention as matrix multiplications and a softmax",
    "the program switches fused attention off, and all scores are written to memory",
)


def _fix(case: Analysis, found: Attentions) -> Fix:
    if not found.off:
        return _implementation(case, found)
    names = calls_to_remove(case)
    lines = ", ".join(f"{name}(False)" for name in names)
    removed = without_call(f"remove {lines}\nor a sdpa_kernel(SDPBackend.MATH) around the model", *names)
    return removed if found.off == len(found.stretches) else removed + "\n" + _implementation(case, found)


def _implementation(case: Analysis, found: Attentions) -> Fix:
    if not case.trains_on_tokens:
        own = call(SDPA, *map(Code, "qkv")) + ", as diffusers' and timm's own attention does"
        loaded = ";\nof transformers: " + call("from_pretrained", ..., attn_implementation="sdpa").otherwise()
        return own.by("eager_attention") + (loaded if case.stack.takes_attention("sdpa") else "")
    if found.sinks:
        name, note = "flex_attention", "\n# sinks: SDPA has none; on Hopper also kernels-community/vllm-flash-attn3"
    elif found.capped:
        name, note = "flash_attention_2", "  # soft caps: SDPA has none"
    else:
        name, note = "sdpa", ""
    stack, loaded = case.stack, _loaded(case, found, name)
    own = _own_call(found)
    if not stack.takes_attention(name):
        return own.by("eager_attention")
    return stack.fix(
        loaded + note + "\nor in your own code: " + own.otherwise() if loaded else own,
        trl=stack.setting({"model_init_kwargs": {"attn_implementation": name}}, note=note),
        transformers=loaded + note if loaded else "",
        unsloth=call("FastLanguageModel.from_pretrained", ..., attn_implementation=name) + note,
    ).by("eager_attention", "" if name == "sdpa" else name)


def _own_call(found: Attentions) -> Fix:
    """The call with arguments that keep the mask's meaning: the recording does not show what the mask hides."""
    if not found.masked:
        return call(SDPA, *map(Code, "qkv")) + "  # no mask was added: not causal"
    masked = call(SDPA, *map(Code, "qkv"), attn_mask=Code("mask"))
    return masked + "\n# or is_causal=True without a mask, if that hides nothing but later positions"


def _loaded(case: Analysis, found: Attentions, name: str) -> Fix:
    """The fix that loads the model with another attention; empty if it is not a transformers model. For an unknown
    class it depends on whether the model embeds words and masks some from others."""
    stack = case.stack
    words = case.ops_named(lambda text: text == "aten::embedding").any()
    some = stack.model_class is None and not (words and found.masked)
    return stack.loaded(causal=not some, attn_implementation=name)


def _apply(graph: Graph, replacement: Replacement) -> Graph:
    return with_replacement(graph, replacement)


def find_attentions(case: Analysis) -> Attentions | None:
    """Softmaxes over scores with the matmuls before and after, and torch's own attention whose fused kernels are
    switched off; None if there are none."""
    timeline, ops = case.timeline, case.trace.ops
    low, high = timeline.window
    ahead = np.isin(timeline.host.op, (FORWARD, RECOMPUTE)) & (ops.kind == OP)
    ahead &= (ops.start_ns >= low) & (ops.start_ns < high)
    if not (case.ops_named(SOFTMAX.__contains__) & ahead).any():
        return None
    found = _op_by_op(case, ahead)
    off = [one for one in switched_off(case, ahead) if one[1].queries >= LEAST_QUERIES]
    if not off:
        return found
    rows, kinds, sizes = zip(*off, strict=True)
    at, size = np.array(rows), np.array(sizes, np.int64)
    stretches = Stretches.of(ops, at)
    masked = bool((case.ops_within(case.ops_at(rows)) & case.ops_named(MASKING.__contains__)).any())
    if found is None:
        return Attentions(stretches, kinds, size, False, False, masked, len(off))
    return replace(
        found,
        stretches=found.stretches.and_also(stretches),
        shapes=found.shapes + kinds,
        size=np.append(found.size, size),
        masked=found.masked or masked,
        off=len(off),
    )


def _op_by_op(case: Analysis, ahead: Mask) -> Attentions | None:
    """Softmaxes over scores among these ops, outside torch's own attention."""
    ops = case.trace.ops
    rows = np.flatnonzero(ahead)
    rows = rows[np.lexsort((ops.start_ns[rows], ops.thread[rows]))]
    # The fallback of torch's own attention is not the model's choice, unless fused kernels are switched off: another
    # kernel would be refused for the same reason.
    fallback = case.ops_within(case.ops_named(lambda name: name.startswith("aten::scaled_dot_product_attention")))
    softmax = np.flatnonzero((case.ops_named(SOFTMAX.__contains__) & ~fallback)[rows])
    matmuls = np.flatnonzero(case.ops_named(MATMULS.__contains__)[rows])
    tanh = case.ops_named(lambda name: name == "aten::tanh")[rows]
    masking = case.ops_named(MASKING.__contains__)[rows]
    if not len(matmuls):
        return None
    shapes = _Shapes(case)
    found, sinks, capped, masked = [], False, False, False
    following = np.searchsorted(matmuls, softmax)
    for at, k in zip(softmax.tolist(), following.tolist(), strict=True):
        if k == 0 or k == len(matmuls):
            continue
        before, after = int(matmuls[k - 1]), int(matmuls[k])
        if (
            at - before > SOFTMAX_REACH
            or after - at > SOFTMAX_REACH
            or ops.thread[rows[before]] != ops.thread[rows[after]]
        ):
            continue
        shape, size, more = shapes.of(int(rows[before]), int(rows[at]), int(rows[after]))
        if shape is None:
            continue
        sinks |= more
        capped |= bool(tanh[before:at].any())
        masked |= bool(masking[before:at].any())
        found.append((int(rows[before]), int(rows[after]), shape, size))
    if not found:
        return None
    first, last, kinds, sizes = zip(*found, strict=True)
    start, end = np.array(first), np.array(last)
    stretches = Stretches.of(ops, start, end)
    return Attentions(stretches, kinds, np.array(sizes, np.int64), sinks, capped, masked)


class _Shapes:
    """Reads attention's shape from its three ops; each distinct triple of texts is parsed once."""

    def __init__(self, case: Analysis) -> None:
        self._trace = case.trace
        self._known: dict[tuple[int, ...], tuple[Shape | None, int, bool]] = {}

    def of(self, scores: int, softmax: int, values: int) -> tuple[Shape | None, int, bool]:
        """(shape, bytes per element, whether there is one key more than the matmul gave); shape None if it is no
        attention."""
        ops = self._trace.ops
        key = tuple(int(column[row]) for row in (scores, softmax, values) for column in (ops.dims, ops.types))
        if key not in self._known:
            self._known[key] = self._read(key)
        return self._known[key]

    def _read(self, key: tuple[int, ...]) -> tuple[Shape | None, int, bool]:
        if NO_TEXT in key[::2]:
            return None, 0, False
        texts = [self._trace.text(i) for i in key]
        left, middle, right = (
            [t for t in parse("", dims, types, None, None).tensors if len(t.shape) > 2]
            for dims, types in zip(texts[::2], texts[1::2], strict=True)
        )
        if len(left) < 2 or not middle or len(right) < 2:
            return None, 0, False
        (heads, queries, width), keys = left[-2].shape, left[-1].shape[-1]
        attended, value_width = right[-2].shape[-1], right[-1].shape[-1]
        seen = middle[0].shape
        rows = middle[0].elements // max(seen[-1], 1)
        if rows != heads * queries or seen[-1] not in (keys, keys + 1) or attended != keys or queries < LEAST_QUERIES:
            return None, 0, False
        return Shape(1, heads, queries, keys, width, value_width), left[-2].element_bytes, seen[-1] == keys + 1


def _fused_ns(case: Analysis, found: Attentions, level: int) -> np.ndarray:
    """GPU time of fused kernels for all attentions, forward and then backward, ns."""
    assert case.roofline is not None
    ceilings = case.roofline.ceilings
    result = np.empty((2, len(found.shapes)))
    for i, (shape, size) in enumerate(zip(found.shapes, found.size.tolist(), strict=True)):
        causal = case.trains_on_tokens and level < 2 and shape.queries == shape.keys and found.masked
        rate = ceilings.flops.get("bf16" if size == 2 else "tf32") or max(ceilings.flops.values())
        rows = shape.batch * shape.heads * (shape.queries + shape.keys) * (shape.width + shape.value_width) * size
        for backward, flops in enumerate((forward_flops(shape, causal), backward_flops(shape, causal))):
            share = (calibrated.ATTENTION_FORWARD, calibrated.ATTENTION_BACKWARD)[backward].falling[level]
            tensor = flops / rate / share
            # Backward reads inputs, result and its gradient, and writes three gradients, the queries' in fp32 first.
            memory = rows * (1, 4)[backward] / ceilings.memory_bytes_per_s / calibrated.ATTENTION_MEMORY.value
            result[backward, i] = max(tensor, memory) * 1e9 + FUSED_LAUNCHES[backward] * ceilings.launch_floor_ns
    return result.reshape(-1)


def less_memory(memory: RecordedMemory, _: float | None) -> Iterator[MemoryFix]:
    """Attention that does not write scores."""
    if memory.recorded.score_bytes and not memory.recorded.checkpointing:
        yield MemoryFix("fused_attention", "fused attention", changes.fused_attention())


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    change=change,
    memory=MemoryRemedy(("fused_attention",), less_memory),
    ledger=LedgerItem("attention as matrix multiplications and a softmax"),
    synonyms=("attention", "flash_attention", "flash_attn", "sdpa", "attn_implementation", "eager"),
    titles=("fused_attention_instead_of_eager", "fused_attention_switched_on"),
)
