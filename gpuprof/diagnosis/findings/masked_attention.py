"""Attention computes scores that a mask then throws away, for packed documents or padding."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration import latency
from gpuprof.calibration.quoted import percent
from gpuprof.costs.dtypes import DTYPES, UNKNOWN
from gpuprof.costs.formulas.attention import is_backward, is_causal
from gpuprof.diagnosis.detect.attention.masked_scores import arguments_of, masked_kernels, useful_share
from gpuprof.diagnosis.detect.attention.needless_mask import (
    NeedlessMask,
    find_mask_of_one_sample,
    find_needless_mask,
    find_shared_mask,
)
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.result.fix import Code, Fix, as_fix, call, code, joined
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.transform import scaled
from gpuprof.tracefile.trace import F64, Mask
from gpuprof.units import Assumed, Convention, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.result.finding_model import Evidence

ONE_IN_BELOW: Convention[Share] = 0.2
"""Smaller shares are written as 1 in N."""
MOST_USEFUL: Assumed[Share] = 0.6
"""Largest useful share of a row's scores for a proposal: lengths within one batch differ by as much."""
RATES = tuple(zip(calibrated.ATTENTION_FORWARD.falling, calibrated.ATTENTION_BACKWARD.falling, strict=True))
"""Shares of the tensor ceiling that attention over packed lengths reaches, (forward, backward): at best, as expected,
at worst."""
SDPA = "torch.nn.functional.scaled_dot_product_attention"
FLASH: dict[str, Any] = {"attn_implementation": "flash_attention_2"}
FLEX: dict[str, Any] = {"attn_implementation": "flex_attention"}

PAGE = Page(
    id="masked_attention",
    title="Attention computes scores that its mask throws away",
    means="""
Where several documents are packed into a row, or rows are padded, a mask keeps tokens from seeing those of another
document. A kernel that takes the mask as a tensor still computes all scores of the row: with 16 documents of 2,048
tokens in a row of 32,768 that is 16 times what they need. Kernels that are given the lengths (FlashAttention's
variable lengths), or a description of the blocks (FlexAttention), skip them.

A mask that hides nothing still costs: its values are loaded and added to all scores, and the fastest kernels take none.
A batch of one sample needs no mask for its padding: captions, frames or points that do not count can be cut off.
""",
    detected=f"""
The recorder reads masks, positions and lengths of batches while they lie in host memory, and counts the pairs of tokens
within one document. If these are less than {percent(MOST_USEFUL)} % of all pairs of a row, and attention runs in
kernels over whole rows that take a mask, not lengths, the rest is wasted. Not detected where batches were not recorded,
as with Nsight Systems or torch.profiler alone. A mask that may hide nothing: `scaled_dot_product_attention` gets one
over all pairs of at least 256 tokens, the same for all heads, and no token of the batches is padding; or the batches
bring no mask, and all have the same number of tokens. Not in transformers models: the library leaves such masks out
itself. A mask that may hide only later positions: one over all pairs of at least 256 tokens that is the same for all
samples and heads. A mask of a single sample, whatever it consists of: all attention that takes a mask has one row of
queries in its batch, and the mask is the same for all heads. Not in transformers models of text, and not where the
batches are known to be packed or padded. Documents packed without any mark attend to each other, which is taken as
intended.
""",
    gain=f"""
Each attention kernel takes the time of its useful scores at {percent(calibrated.ATTENTION_FORWARD.value)} % of the
tensor ceiling forward and {percent(calibrated.ATTENTION_BACKWARD.value)} % backward
({percent(calibrated.ATTENTION_FORWARD.low)} to {percent(calibrated.ATTENTION_FORWARD.high)} % and
{percent(calibrated.ATTENTION_BACKWARD.low)} to {percent(calibrated.ATTENTION_BACKWARD.high)} %), and never longer than
now. Where each token sees only those before it, half of a document's pairs are useful. Without a mask, each kernel
takes {calibrated.UNMASKED_LEFT.value:g} ({calibrated.UNMASKED_LEFT.low:g} to {calibrated.UNMASKED_LEFT.high:g},
assumed) of its time. A probability of {calibrated.NEEDLESS_MASK_ODDS.value:g} that the mask hides nothing,
{calibrated.NEEDLESS_MASK_SEEN.value:g} if the batches' own mask keeps all tokens, and
{calibrated.ONE_SAMPLE_MASK_ODDS.value:g} for a mask of a single sample that is the same for all queries, is assumed.
With `is_causal=True`
{calibrated.CAUSAL_LEFT.value:g} of its time ({calibrated.CAUSAL_LEFT.low:g} to {calibrated.CAUSAL_LEFT.high:g}) is
left; the probability that the mask says no more than that is {calibrated.CAUSAL_MASK_ODDS.value:g} (assumed).
""",
    wrong="""
A mask that the model makes from something else (windows, blocks, prefixes) is needed: print `mask.min()` and
`mask.max()` once.
Models with sinks, soft caps or windows need a kernel that supports them. `packing=False` needs no other kernel, but
pads. FlexAttention compiles once for each new shape.
""",
    applies=("training",),
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes a kernel that skips what the mask excludes, and no mask where there is nothing to exclude."""
    yield from _skipped(case)
    yield from _left_out(case)


def _left_out(case: Analysis) -> Iterator[Proposal]:
    """Proposes no mask where the batches have nothing to hide, or `is_causal=True` where that hides the same."""
    found, shared = find_needless_mask(case) or find_mask_of_one_sample(case), find_shared_mask(case)
    if found is not None:
        yield Proposal(
            title="attention without a mask",
            evidence=_takes_a_mask(case, found),
            fix=call(SDPA, *map(Code, "qkv"))
            + "  # attn_mask only for batches with padding\n# is_causal=True where it hides only later positions"
            + ("\n# cut the padding of a single sample off, instead of masking it" if found.queries == 1 else ""),
            item=("attention with a mask that may hide nothing", "its values are loaded and added to all scores"),
            key="left_out",
            needs="the mask hides nothing, or only later positions: print mask.min() once",
            odds=found.odds,
            claims=("attention",),
            change=_shorter(case, found, calibrated.UNMASKED_LEFT.value),
            best=_shorter(case, found, calibrated.UNMASKED_LEFT.low),
            worst=_shorter(case, found, calibrated.UNMASKED_LEFT.high),
        )
    elif shared is not None:
        yield Proposal(
            title="is_causal=True in place of a mask",
            evidence=_takes_a_mask(case, shared),
            fix=call(SDPA, *map(Code, "qkv"), is_causal=True) + "  # and no attn_mask",
            item=("attention with a mask where is_causal may do", "all scores are computed, and half of them used"),
            key="causal",
            needs="the mask hides later positions and nothing else",
            odds=shared.odds,
            claims=("attention",),
            change=_shorter(case, shared, calibrated.CAUSAL_LEFT.value),
            best=_shorter(case, shared, calibrated.CAUSAL_LEFT.low),
            worst=_shorter(case, shared, calibrated.CAUSAL_LEFT.high),
        )


def _takes_a_mask(case: Analysis, found: NeedlessMask) -> tuple[Evidence, ...]:
    nodes = case.nodes_of_gpu(found.rows)
    took = case.per_step(float(case.graph.duration_ns[nodes].sum()))
    text = (
        f"attention adds a mask of {found.queries:,} × {found.keys:,} values to its scores, but {found.why}:"
        f" {duration(took)} of GPU time {case.unit.a}"
    )
    return spans(case, text, nodes)


def _shorter(case: Analysis, found: NeedlessMask, left: float) -> Change:
    """Attention that takes no mask; left: share of its kernels' time."""
    return partial(scaled, nodes=case.nodes_of_gpu(found.rows), factor=left)


def _skipped(case: Analysis) -> Iterator[Proposal]:
    """Proposes a kernel that gets the lengths, or the blocks."""
    useful = useful_share(case)
    if useful is None or useful > MOST_USEFUL or case.roofline is None:
        return
    rows = masked_kernels(case)
    if not rows.any():
        return
    graph, nodes = case.graph, case.nodes_of_gpu(rows)
    best, usual, worst = (np.append(_left(case, rows, useful, level), 1.0)[graph.gpu_row] for level in range(3))
    gpu_ns = case.per_step(float(graph.duration_ns[nodes].sum()))
    evidence = spans(
        case,
        f"attention takes {duration(gpu_ns)} of GPU time a step and computes all scores of each row, of which"
        f" {_part(useful)} are within one document",
        nodes,
    )
    fix = _fix(case)
    yield Proposal(
        title="attention that skips what its mask excludes",
        evidence=evidence,
        fix=fix,
        change=partial(scaled, nodes=nodes, factor=usual),
        best=partial(scaled, nodes=nodes, factor=best),
        worst=partial(scaled, nodes=nodes, factor=worst),
        claims=("attention",),
    )


def _left(case: Analysis, rows: Mask, useful: float, level: int) -> F64:
    """Per GPU event the share of its time that remains if only useful scores are computed."""
    assert case.roofline is not None
    trace, work, limits = case.trace, case.roofline.work, case.roofline.ceilings
    gpu, links = trace.gpu, case.timeline.links
    left = np.ones(len(gpu))
    forward, backward = RATES[level]
    for row in np.flatnonzero(rows).tolist():
        took = float(gpu.end_ns[row] - gpu.start_ns[row])
        arguments = arguments_of(case, int(links.op[row]))
        if arguments is None or took <= 0:
            continue
        code = int(work.dtype[row])
        rate = limits.flops.get(DTYPES[code]) if code != UNKNOWN else None
        flops = float(work.flops[row])
        # With a mask tensor the kernel computes both halves of the scores; a causal model only uses one.
        half = 0.5 if case.stack.is_causal and not is_causal(arguments) else 1.0
        if rate and np.isfinite(flops) and flops > 0:
            needed = flops * useful * half / (rate * (backward if is_backward(arguments.name) else forward)) * 1e9
            left[row] = min(max(needed, latency.ELEMENTWISE_NS.value) / took, 1.0)
    return left


def _part(useful: float) -> str:
    return f"1 in {1 / useful:,.0f}" if useful < ONE_IN_BELOW else f"{100 * useful:.0f} %"


def _fix(case: Analysis) -> Fix:
    """The fix for this stack: lengths for a variable-length kernel, a block mask, or rows that are not packed."""
    stack = case.stack
    ways: list[Fix] = []
    for options, note in ((FLASH, "  # lengths follow from position_ids"), (FLEX, "  # a block mask, compiled")):
        name = options["attn_implementation"]
        if stack.takes_attention(name):
            trl = stack.setting({"model_init_kwargs": options}) if stack.kind == "trl" else ""
            loaded = trl or stack.loaded(**options)
            if loaded:
                ways.append(loaded + note)
    if stack.builds_on("trl") and stack.has("padding_free") is not False:
        ways.append(stack.setting({"padding_free": True}) or code("padding_free=True"))
    if stack.builds_on("trl") and stack.has("packing") is not False:
        ways.append(stack.setting({"packing": False}) or code("packing=False"))
    if not ways:
        ways = [
            as_fix("torch.nn.attention.flex_attention with a block mask per document"),
            as_fix("flash_attn.flash_attn_varlen_func with the lengths of the documents"),
        ]
    first, *others = {str(way): way for way in ways}.values()
    return joined((first, *(other.otherwise() for other in others)), "\nor ")


def _absent(case: Analysis) -> str | None:
    useful = useful_share(case)
    if useful is None or not case.per_step(case.gpu_ns(case.category("attention"))):
        return None
    if useful > MOST_USEFUL:
        return f"{100 * useful:.0f} % of the scores of a row are within one document"
    return "attention already gets the documents' lengths" if not masked_kernels(case).any() else None


ABSENT = Absent("attention that skips masked blocks", _absent)


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    ledger=LedgerItem(
        "attention scores that the mask throws away",
        "the kernel is given a mask over all pairs of tokens, and computes them all",
        unadvised=True,
    ),
    lowers=("slow_attention",),
    synonyms=(
        "flex_attention",
        "is_causal",
        "varlen",
        "block_mask",
        "document_mask",
        "packed_attention",
    ),
    titles=(
        "attention_that_skips_what_its_mask_excludes",
        "attention_without_a_mask",
        "is_causal_true_in_place_of_a_mask",
    ),
)
