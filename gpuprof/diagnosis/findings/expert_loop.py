"""A mixture of experts computes its experts one after another, each with a handful of small kernels and a wait."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import experts as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.costs.arguments import Tensor, parse
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.gpu.replace_work import replacement_of, with_replacement
from gpuprof.diagnosis.detect.loops.dense_experts import FEWEST_EXPERTS, MOST_EXPERTS, find_dense_experts
from gpuprof.diagnosis.detect.loops.expert_loops import ExpertLoops, find_loops
from gpuprof.diagnosis.detect.loops.layer_ops import MATMULS
from gpuprof.diagnosis.detect.pair.candidates import PASSES, Candidate, claim_model
from gpuprof.diagnosis.detect.pair.quantities import MOST_WORK_LEFT, kernel_counts, quantity
from gpuprof.diagnosis.detect.pair.signs import fewer_kernels
from gpuprof.diagnosis.detect.passes import backward_of, host_ns_per_launch, without_recompute
from gpuprof.diagnosis.result.fix import Fix, environment
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.stretches import nodes_in
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.diagnosis.detect.pair.facts import Facts

LEAST_DENSE_SHARE: Assumed[Share] = 0.03
"""Smallest share of the GPU's time in experts that all compute all tokens for a proposal."""
NEEDS = "\n# transformers 5, torch 2.9 or newer"
CATEGORIES = ("gemm", "grouped_gemm", "gather/scatter/index", "elementwise", "cast/copy", "memcpy", "reduction")
"""Categories of work that differ if experts are computed together."""

PAGE = Page(
    id="expert_loop",
    title="Experts are computed one after another",
    means="""
A mixture-of-experts layer loops over its experts in Python. For each expert it finds the tokens routed there (which
waits for the GPU), gathers their rows, runs a few small matrix multiplications and elementwise kernels, and adds the
result back. With 32 or 128 experts and dozens of layers this makes thousands of launches of a few microseconds each,
and a wait between any two experts. The GPU is idle most of the time, and a faster one would not help. Grouped matrix
multiplications (grouped GEMM) compute all experts of a layer at once.

Other programs compute every expert for all tokens, and multiply the results of those that the router did not choose by
zero: with two of eight experts chosen, four times the work.
""",
    detected=f"""
In the forward pass, a sequence of ops that repeats at least four times and ends in an op that adds rows back
(`index_add_`, `index_put_`, `scatter_add_`), with a matrix multiplication and a selection of rows (`nonzero`,
`where`, `index`) in each repetition. The start of a layer's first repetition is inferred from the length of the
others. Names of models or modules are not used.

All experts for all tokens: a `topk` that takes at most half of {FEWEST_EXPERTS} to {MOST_EXPERTS} scores of each token,
and next to it either ops that repeat with the same shapes once for each score, with a multiplication of all tokens in
each repetition, or a batched multiplication with a matrix for each score and all tokens; at least
{percent(LEAST_DENSE_SHARE)} % of the GPU's time. Needs recorded shapes.
""",
    gain=f"""
Per layer, the CPU time of the loop becomes that of about {calibrated.FORWARD_LAUNCHES.value} launches forward and
{calibrated.BACKWARD_LAUNCHES.value} backward, each as long as the other launches of this recording, or as the loop's
own if those are shorter; its waits are removed. The experts' matrix multiplications become grouped ones with the same
FLOPs at {percent(calibrated.TENSOR_SHARE.value)} % of the tensor ceiling, or at
{percent(calibrated.MEMORY_SHARE.value)} % of the memory ceiling for reading the weights of all experts that were hit,
whichever is longer. Elementwise work runs once over all rows; sorting, masking and combining the rows is added. 4-bit
experts are still dequantised.

Instead of all experts for all tokens: the same launches, and the chosen experts' share of the GPU time, times
{calibrated.ROUTED_COST.value:g} ({calibrated.ROUTED_COST.low:g} to {calibrated.ROUTED_COST.high:g}, assumed) for
ordering the rows and for smaller matrix multiplications.
""",
    wrong=f"""
A recording has no values: where all experts count, if little, they are needed. The probability that they do not is
{percent(calibrated.ROUTED_ODDS.value)} % (assumed).

Grouped GEMM needs the experts' weights in one tensor; there may be no such path for quantised experts. If only a few
experts are hit (a short batch), the gain is smaller. On GPUs older than Hopper grouped GEMM is slower than assumed
here.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes grouped matmuls instead of a loop over experts, or instead of all experts for all tokens."""
    loops = find_loops(case)
    if loops is None:
        yield from _dense(case)
        return
    graph, count = case.graph, len(loops.stretches)
    forward = nodes_in(case.graph, loops.stretches)
    backward = nodes_in(case.graph, backward_of(case, loops.stretches))
    backward = np.where(forward >= 0, -1, without_recompute(case, backward))
    group = np.where(forward >= 0, forward, np.where(backward >= 0, backward + count, -1))
    inside = group >= 0
    launch_ns = np.array([_launch_ns(case, inside, mask) for mask in (forward >= 0, backward >= 0)])

    def change(level: int):
        launches = np.repeat(
            [calibrated.FORWARD_LAUNCHES.rising[level], calibrated.BACKWARD_LAUNCHES.rising[level]], count
        )
        host_ns = launches * np.repeat(launch_ns, count)
        gpu_ns = _grouped_ns(case, loops, group, level)
        return partial(with_replacement, replacement=replacement_of(graph, group, host_ns, gpu_ns, launches))

    layers = count / case.steps
    work = graph.on_gpu & inside
    waits = graph.waits & inside
    host_ns = case.per_step(float(graph.duration_ns[inside & ~graph.on_gpu].sum()))
    text = (
        f"{layers:,.0f} loops {case.unit.a} over {loops.blocks.mean():,.0f} experts each: "
        f"{case.per_step(work.sum()):,.0f} kernels, "
        f"{case.per_step(waits.sum()):,.0f} waits for the GPU and {duration(host_ns)} of CPU time {case.unit.a}"
    )
    yield Proposal(
        title="grouped GEMM instead of an expert loop",
        evidence=spans(case, text, inside),
        fix=_grouped(case),
        change=change(1),
        best=change(0),
        worst=change(2),
    )


def _grouped(case: Analysis) -> Fix:
    """Grouped matmuls over the tokens of each expert."""
    loaded = case.stack.loaded(experts_implementation="grouped_mm")
    return case.stack.fix(
        loaded + NEEDS if loaded else "torch.nn.functional.grouped_mm over the tokens, sorted by expert",
        trl=case.stack.setting({"model_init_kwargs": {"experts_implementation": "grouped_mm"}}, note=NEEDS),
        unsloth=environment("UNSLOTH_MOE_BACKEND", "grouped_mm") + "  # set before unsloth is imported",
    ).by("expert_loop")


def _dense(case: Analysis) -> Iterator[Proposal]:
    """Each token through the experts that were chosen for it."""
    found = find_dense_experts(case)
    if found is None:
        return
    graph, count = case.graph, len(found.stretches)
    forward = nodes_in(graph, found.stretches)
    backward = without_recompute(case, nodes_in(graph, backward_of(case, found.stretches)))
    group = np.where(forward >= 0, forward, np.where(backward >= 0, backward + count, -1))
    inside = group >= 0
    work = inside & graph.on_gpu
    gpu_ns = float(graph.duration_ns[work].sum())
    if gpu_ns < LEAST_DENSE_SHARE * float(graph.duration_ns[graph.on_gpu].sum()):
        return
    part = np.tile(found.chosen / found.experts, 2)
    launch_ns = np.array([_launch_ns(case, inside, mask) for mask in (forward >= 0, backward >= 0)])

    def change(level: int):
        launches = np.repeat(
            [calibrated.FORWARD_LAUNCHES.rising[level], calibrated.BACKWARD_LAUNCHES.rising[level]], count
        )
        took = np.bincount(group[work], weights=graph.duration_ns[work], minlength=2 * count).astype(np.float64)
        left = took * np.minimum(part * calibrated.ROUTED_COST.rising[level], 1.0)
        host_ns = launches * np.repeat(launch_ns, count)
        return partial(with_replacement, replacement=replacement_of(graph, group, host_ns, left, launches))

    text = (
        f"{count / case.steps:,.0f} layers {case.unit.a} compute all of {found.experts.mean():,.0f} experts for every"
        f" token, of which a router chooses {found.chosen.mean():,.0f}: {duration(case.per_step(gpu_ns))} of GPU time"
    )
    yield Proposal(
        title="only the chosen experts of each token",
        evidence=spans(case, text, inside),
        fix=_grouped(case),
        change=change(1),
        best=change(0),
        worst=change(2),
        odds=calibrated.ROUTED_ODDS.value,
        needs="the results of the other experts are multiplied by zero",
        item=("experts that were not chosen", "a router chooses a few experts for each token, and all are computed"),
        key="dense",
    )


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Experts computed together on one side, one after another on the other."""
    grouped, single = kernel_counts(a, b, ("grouped_gemm",)), kernel_counts(a, b, ("gemm",), PASSES)
    # If they use other kernels than grouped matmuls, only the finding shows the loop.
    looped = (a if single.a > single.b else b).finding(PAGE.id) is not None
    if (grouped.largest > 0 and grouped.fell(least=0.0) and single.fell(to=MOST_WORK_LEFT)) or (
        looped and single.fell()
    ):
        yield Candidate(
            PAGE.id,
            "experts computed together",
            f"grouped GEMMs: {grouped} {a.unit.a}, single GEMMs: {single}, kernels in all: {kernel_counts(a, b)}, "
            f"waits for the GPU: {quantity(a, b, lambda side: side.counts.syncs)}",
            claim_model(CATEGORIES, fewer_kernels(a, b)),
            single.more,
        )


def _launch_ns(case: Analysis, inside: Mask, mine: Mask) -> float:
    """CPU time of one of the launches that replace those of a pass, ns: that of other launches in this recording, but
    no longer than the loop's own, which are the same small ops."""
    graph = case.graph
    launches = np.count_nonzero(mine & graph.on_gpu)
    own_ns = float(graph.duration_ns[mine & ~graph.on_gpu & ~graph.waits].sum()) / max(launches, 1)
    usual = host_ns_per_launch(case, inside, mine)
    return min(usual, own_ns) if launches else usual


def _grouped_ns(case: Analysis, loops: ExpertLoops, group: I64, level: int) -> F64:
    """GPU time of grouped kernels for the loops' work, forward and then backward, ns."""
    graph, roof = case.graph, case.roofline
    count = len(loops.stretches)
    rows = np.flatnonzero(graph.on_gpu & (group >= 0))
    event, mine = graph.gpu_row[rows], group[rows]
    took = graph.duration_ns[rows]

    def total(values: F64, where: Mask) -> F64:
        return np.bincount(mine[where], weights=values[where], minlength=2 * count).astype(np.float64)

    matmul = case.category("gemm", "grouped_gemm")[event]
    dequantized = case.category("dequantize")[event]
    kept = total(took, dequantized) * (level > 0)
    if roof is None or np.isnan(roof.work.flops[event[matmul]]).any() or np.isnan(loops.row_bytes).any():
        # The work is unknown: many small matmuls gain from being merged, but how much is unknown.
        return total(took, ~dequantized) * calibrated.UNKNOWN_LEFT.rising[level] + kept
    ceilings, work = roof.ceilings, roof.work
    flops, moved = total(work.flops[event], matmul), total(np.nan_to_num(work.bytes[event]), matmul)
    rate = ceilings.flops.get("bf16") or max(ceilings.flops.values())
    memory = ceilings.memory_bytes_per_s
    tensor_ns = flops / rate / calibrated.TENSOR_SHARE.falling[level] * 1e9
    weights_ns = moved / memory / calibrated.MEMORY_SHARE.falling[level] * 1e9
    plain = case.category("elementwise")[event] & ~_resets(case)[event]
    forward = total(np.nan_to_num(work.bytes[event]), plain & (mine < count))[:count]
    # In backward, an activation also reads the gradient and writes one per input: twice its forward bytes.
    activation = np.concatenate([forward, 2 * forward])
    gate = _first_matmul_bytes(case, loops, group)
    around = np.tile(calibrated.ROW_PASSES.value * loops.row_bytes + calibrated.GATE_PASSES.value * gate, 2)
    launches = np.repeat([calibrated.FORWARD_LAUNCHES.rising[level], calibrated.BACKWARD_LAUNCHES.rising[level]], count)
    moved_ns = (activation / calibrated.ELEMENTWISE_SHARE.value + around) / memory * 1e9
    has = np.bincount(mine, minlength=2 * count) > 0
    sort = np.repeat([calibrated.SORT_NS.value, 0.0], count)
    each = np.maximum(tensor_ns, weights_ns) + moved_ns + sort + launches * ceilings.launch_floor_ns + kept
    return np.where(has, each, 0.0).astype(np.float64)


def _resets(case: Analysis) -> Mask:
    """GPU events that set or accumulate whole buffers, which each block of a loop repeats."""
    op = case.timeline.links.op
    names = case.ops_named(lambda name: name in ("aten::fill_", "aten::zero_", "aten::add_"))
    return np.append(names, False)[op]


def _first_matmul_bytes(case: Analysis, loops: ExpertLoops, group: I64) -> F64:
    """Per loop the bytes of the results of its matmuls from the model's width: the gate and the up projection."""
    ops, graph = case.trace.ops, case.graph
    found = np.zeros(len(loops.stretches))
    rows = np.flatnonzero(graph.on_gpu & (group >= 0) & (group < len(found)))
    event = graph.gpu_row[rows]
    op = case.timeline.links.op[event]
    rows, op = rows[op >= 0], op[op >= 0]
    _, first = np.unique(op, return_index=True)
    rows, op = rows[first], op[first]
    matmul = case.ops_named(MATMULS.__contains__)[op]
    rows, op = rows[matmul], op[matmul]
    texts, which = np.unique(np.stack([ops.dims[op], ops.types[op]]), axis=1, return_inverse=True)
    size = np.zeros((texts.shape[1], 2))
    for i, (dims, types) in enumerate(texts.T.tolist()):
        matrices = [
            t for t in parse("", case.trace.text(dims), case.trace.text(types), None, None).tensors if len(t.shape) > 1
        ]
        size[i] = _gives(matrices)
    width = loops.width[group[rows]]
    mine = size[which.reshape(-1)]
    wanted = mine[:, 0] == width
    np.add.at(found, group[rows[wanted]], mine[wanted, 1])
    return found


def _gives(matrices: list[Tensor]) -> tuple[float, float]:
    """(inner length, bytes of the result) of the matmul of the last two matrices among an op's arguments."""
    if len(matrices) < 2:
        return -1.0, 0.0
    left, right = matrices[-2:]
    return float(left.shape[-1]), float(left.elements // max(left.shape[-1], 1) * right.shape[-1] * left.element_bytes)


FINDING = Declaration(
    page=PAGE,
    find=find,
    change=change,
    ledger=LedgerItem("experts one after the other in a loop"),
    lowers=("waiting_for_gpu", "slow_matmuls"),
    synonyms=("moe", "experts", "grouped_gemm", "grouped_mm", "mixture_of_experts", "dense_experts"),
    titles=("grouped_gemm_instead_of_an_expert_loop", "only_the_chosen_experts_of_each_token"),
)
