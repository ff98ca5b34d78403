"""LoRA adapters in fp32 on a model in half precision: each layer casts its input up and its output down."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration import latency as latency_calibrated
from gpuprof.calibration.quoted import percent, us
from gpuprof.costs.arguments import parse
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.memory_remedy import MemoryRemedy
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.gpu.adapters import BEHIND, LOW_RANK, MOST_RANK, OPS_BEHIND, OPS_TO_B
from gpuprof.diagnosis.detect.pair.candidates import PASSES, Candidate, claim_model
from gpuprof.diagnosis.detect.pair.quantities import MOST_WORK_LEFT, kernel_counts, kernel_ns
from gpuprof.diagnosis.detect.pair.signs import advised, alike_compiled, fewer_kernels
from gpuprof.diagnosis.detect.passes import backward_of, siblings, without_recompute
from gpuprof.diagnosis.result.fix import Code, call
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.memory import memory_changes as changes
from gpuprof.projection.memory.memory_fixes import MemoryFix
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.replay.transform import Removing, scaled
from gpuprof.tracefile.trace import F64, I64, NO_TEXT, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.detect.pair.facts import Facts
    from gpuprof.projection.memory.recorded_memory import RecordedMemory

HALF = ("c10::BFloat16", "c10::Half")

PAGE = Page(
    id="adapter_casts",
    applies=("training",),
    title="Adapters compute in fp32",
    means="""
PEFT creates LoRA adapters in fp32 even if the model is in bf16. Every adapted layer then casts its whole input to
fp32, runs two thin matrix multiplications without tensor cores, adds the result in mixed precision and casts it back,
and the backward pass does the same. For small adapters this is more traffic than the adapter itself, and several more
kernels per layer.
""",
    detected=f"""
In the forward pass two consecutive `aten::linear` in fp32, the first from wide to narrow (at least {LOW_RANK} :
1, rank at most {MOST_RANK}) and the second back, with a cast from a half-precision format before or after.
""",
    gain=f"""
The casts of the adapters and their backward are removed, on the CPU and on the GPU. Matrix multiplications keep
{percent(calibrated.ADAPTER_MATMUL_LEFT.value)} % of their time, scalings
{percent(calibrated.ADAPTER_SCALE_LEFT.value)} %, additions of two formats {percent(calibrated.ADAPTER_SUM_LEFT.value)}
%, but no kernel gets shorter than {us(latency_calibrated.ELEMENTWISE_NS.value)} µs (matrix multiplications
{us(latency_calibrated.THIN_MATMUL_NS.value)} µs).
""",
    wrong="""
With bf16 adapters the optimizer's small updates are rounded to bf16: training can stall at learning rates below about
1e-5. In that case keep the adapters in fp32 and train under autocast, which casts the small weights instead of the
large inputs.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes adapters in the model's own precision."""
    stretches = find_adapters(case)
    if stretches is None:
        return
    graph = case.graph
    forward = nodes_in(case.graph, stretches)
    inside = (forward >= 0) | (without_recompute(case, nodes_in(case.graph, backward_of(case, stretches))) >= 0)
    casts = _nodes_of(case, _cast_ops(case)) & inside
    if not casts.any():
        return
    left = [_left(case, inside, level) for level in range(3)]
    without_casts = Removing(casts)

    def change(level: int):
        return partial(_apply, without_casts=without_casts, inside=inside, left=left[level])

    gpu = inside & graph.on_gpu
    text = (
        f"{len(stretches) / case.steps:,.0f} adapters a step compute in fp32: "
        f"{case.per_step(gpu.sum()):,.0f} kernels and "
        f"{duration(case.per_step(float(graph.duration_ns[gpu].sum())))} of GPU time a step, "
        f"{case.per_step((casts & graph.on_gpu).sum()):,.0f} of the kernels are casts"
    )
    yield Proposal(
        title="adapters in bf16",
        evidence=spans(case, text, gpu),
        fix=case.stack.fix(
            call("get_peft_model", Code("model"), Code("config"), autocast_adapter_dtype=False),
            trl=call("get_peft_model", Code("model"), Code("peft_config"), autocast_adapter_dtype=False)
            + f", and hand the result to {case.stack.trainer or 'the trainer'} without peft_config",
        ).by("adapter_casts"),
        change=change(1),
        best=change(0),
        worst=change(2),
        changes="adapters are trained in bf16",
        claims=("fp32_matmuls",),
    )


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Fewer casts, if only the side with more of them has the finding."""
    kind = ("cast/copy",)
    pieces = kernel_counts(a, b, kind, PASSES)
    if advised(a, b, PAGE.id, pieces) and pieces.fell(to=MOST_WORK_LEFT) and alike_compiled(a, b):
        yield Candidate(
            PAGE.id,
            "casts around the adapters",
            f"kernels that cast or copy: {pieces} a step, {kernel_ns(a, b, kind).ms} ms of GPU time",
            claim_model((*kind, "gemm", "elementwise"), fewer_kernels(a, b, kind)),
            pieces.more,
        )


def find_adapters(case: Analysis) -> Stretches | None:
    """Stretches in which adapters compute in fp32: from the cast before them, if there is one, to the one after."""
    ops = case.trace.ops
    rows, family = siblings(case)
    linear = case.ops_named(lambda name: name == "aten::linear")[rows]
    at = np.flatnonzero(linear)
    kind = _kinds(case, rows[at])
    # From wide to narrow and back again, one after the other.
    pairs = np.flatnonzero((kind[:-1] < 0) & (kind[1:] > 0) & (family[at[:-1]] == family[at[1:]]))
    pairs = pairs[at[pairs + 1] - at[pairs] <= OPS_TO_B]
    if not len(pairs):
        return None
    small = case.ops_named(
        lambda name: name in ("aten::to", "aten::_to_copy", "aten::dropout", "aten::native_dropout")
    )[rows]
    behind = case.ops_named(BEHIND.__contains__)[rows]
    first, last = at[pairs].copy(), at[pairs + 1].copy()
    for _ in range(2):
        before = np.maximum(first - 1, 0)
        first = np.where(small[before] & (family[before] == family[first]), before, first)
    for _ in range(OPS_BEHIND):
        after = np.minimum(last + 1, len(rows) - 1)
        last = np.where(behind[after] & (family[after] == family[last]), after, last)
    # The next adapter of the layer may use the same cast: its stretch begins where this one ends.
    first[1:] = np.maximum(first[1:], np.where(last[:-1] < at[pairs[1:]], last[:-1] + 1, first[1:]))
    return Stretches.of(ops, rows[first], rows[last])


def _kinds(case: Analysis, rows: I64) -> I64:
    """Per linear op in fp32: -1 from wide to narrow, 1 from narrow to wide, 0 neither."""
    ops = case.trace.ops
    texts, which = np.unique(np.stack([ops.dims[rows], ops.types[rows]]), axis=1, return_inverse=True)
    kinds = np.zeros(texts.shape[1], np.int64)
    for i, (dims, types) in enumerate(texts.T.tolist()):
        if dims == NO_TEXT:
            continue
        tensors = parse("", case.trace.text(dims), case.trace.text(types), None, None).tensors
        if len(tensors) < 2 or len(tensors[1].shape) != 2 or any(t.type != "float" for t in tensors[:2]):
            continue
        out, width = tensors[1].shape
        if out * LOW_RANK <= width and out <= MOST_RANK:
            kinds[i] = -1
        elif width * LOW_RANK <= out and width <= MOST_RANK:
            kinds[i] = 1
    return kinds[which.reshape(-1)]


def _cast_ops(case: Analysis) -> Mask:
    """Copies between fp32 and a half-precision format."""
    ops, trace = case.trace.ops, case.trace
    copies = case.ops_named(lambda name: name == "aten::copy_")
    mixed = np.zeros(len(trace.strings) + 1, bool)
    for text_id in np.unique(ops.types[copies]).tolist():
        names = parse("", None, trace.text(text_id), None, None).types[:2] if text_id != NO_TEXT else ()
        mixed[text_id] = "float" in names and any(half in names for half in HALF)
    return copies & mixed[ops.types]


def _nodes_of(case: Analysis, casts: Mask) -> Mask:
    """Nodes of casts, including the op that only casts: `aten::to`, or autograd's cast of a gradient."""
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    whole = case.ops_named(
        lambda name: (
            name in ("aten::to", "aten::_to_copy", "ToCopyBackward0") or name.endswith("_function: ToCopyBackward0")
        )
    )
    outer = casts.copy()
    rows = np.flatnonzero(casts)
    for _ in range(4):
        above = parent[rows]
        rows = np.unique(above[(above >= 0) & whole[above]])
        outer[rows] = True
    return case.nodes_within(outer & (ops.start_ns >= 0))


def _left(case: Analysis, inside: Mask, level: int) -> F64:
    """Per node the share of its time that it takes in half precision; 1 for unchanged nodes."""
    graph, ops = case.graph, case.trace.ops
    left = np.ones(len(graph))
    rows = np.flatnonzero(inside & graph.on_gpu)
    event = graph.gpu_row[rows]
    op = case.timeline.links.op[event]
    rows, event, op = rows[op >= 0], event[op >= 0], op[op >= 0]
    known = np.zeros((len(case.trace.strings) + 1, 2), bool)
    for text_id in np.unique(ops.types[op]).tolist():
        names = parse("", None, case.trace.text(text_id), None, None).types if text_id != NO_TEXT else ()
        known[text_id] = "float" in names, any(half in names for half in HALF)
    single, mixed = known[ops.types[op]].T
    matmul = case.category("gemm")[event]
    duration = graph.duration_ns[rows]
    wanted = np.where(
        matmul,
        calibrated.ADAPTER_MATMUL_LEFT.rising[level],
        np.where(mixed, calibrated.ADAPTER_SUM_LEFT.rising[level], calibrated.ADAPTER_SCALE_LEFT.rising[level]),
    )
    least = np.where(matmul, latency_calibrated.THIN_MATMUL_NS.value, latency_calibrated.ELEMENTWISE_NS.value)
    shorter = np.maximum(wanted * duration, np.minimum(least, duration))
    left[rows] = np.where(single, np.divide(shorter, duration, out=np.ones(len(rows)), where=duration > 0), 1.0)
    return left


def _apply(graph: Graph, without_casts: Change, inside: Mask, left: F64) -> Graph:
    return scaled(without_casts(graph), inside & graph.on_gpu, left)


def less_memory(memory: RecordedMemory, _: float | None) -> Iterator[MemoryFix]:
    """Adapters with half the memory for weights, gradients and state, and without casts of their inputs."""
    trained = memory.trained
    if trained is None or not trained.single_adapters:
        return
    says = "adapters are trained in half precision"
    if memory.cast_bytes is None and not memory.recorded.checkpointing:
        why = "which inputs are cast for the adapters cannot be counted from the recorded ops"
        yield MemoryFix("half_adapters", "adapters in bf16", None, says, why)
        return
    # With checkpointing casts live as long as one layer is recomputed.
    cast = 0.0 if memory.recorded.checkpointing else memory.cast_bytes or 0.0
    own, state_left = (changes.half_adapters(trained.parameters, cast, with_state) for with_state in (True, False))
    yield MemoryFix("half_adapters", "adapters in bf16", own, says, with_other_state=state_left)


FINDING = Declaration(
    page=PAGE,
    find=find,
    change=change,
    lowers=("slow_matmuls",),
    memory=MemoryRemedy(("half_adapters",), less_memory),
    ledger=LedgerItem("adapters in fp32 around 16-bit layers"),
    synonyms=("lora_casts", "autocast_adapter_dtype", "fp32_adapters", "adapters"),
    titles=("adapters_in_bf16",),
)
