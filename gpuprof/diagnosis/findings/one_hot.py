"""One-hot vectors: rows of a table that are read by multiplying with them, and losses that multiply with them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.costs.formulas.gemm import is_matmul
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.losses.one_hot_losses import MAKING, find_one_hot_losses, tokens_of
from gpuprof.diagnosis.detect.passes import backward_of, shapes_in
from gpuprof.diagnosis.result.fix import Code, assigned, code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.replay.transform import at_most
from gpuprof.tracefile.trace import OP, Mask
from gpuprof.units import Assumed, Bytes, Published, Share, Times

if TYPE_CHECKING:
    from gpuprof.costs.roofline import Roofline
    from gpuprof.diagnosis.analysis import Analysis, Change

LEAST_KERNEL_SHARE: Assumed[Share] = 0.02
"""Smallest share of GPU time for a proposal: with few classes the vectors are short."""
BETWEEN = frozenset({"aten::to", "aten::view", "aten::reshape", "aten::flatten", "aten::unsqueeze", "aten::contiguous"})
"""Ops between the vectors and the multiplication that compute nothing else."""
COUNTS = frozenset({"aten::sum", "aten::mean", "aten::transpose", "aten::t", "aten::permute"})
"""Ops there that count the tokens of each class, and views of what is multiplied."""
MATMULS = frozenset({"aten::matmul", "aten::linear", "aten::einsum"})
ELEMENT_BYTES: Assumed[Bytes] = 4
"""Bytes of an element: one-hot vectors are cast to what the table has, fp32 as a rule."""

LOSS_BYTES: Assumed[Bytes] = 4
"""Bytes of a log-probability: losses are computed in fp32."""
FORWARD_PASSES: Published[Times] = 1
"""Passes over log-probabilities of torch's smoothed cross entropy after log_softmax: the sum of each row."""
BACKWARD_PASSES: Published[Times] = 3
"""The same backward: the gradient of the picked values is zeroed, and that of the sums added, read and written."""

PAGE = Page(
    id="one_hot",
    title="One-hot vectors are multiplied by a table, or by log-probabilities",
    means="""
`one_hot(tokens, classes).float() @ table` writes a vector of zeros with a single one for every token, casts it, and
multiplies all of it by the table, forward and for the table's gradient. `embedding(tokens, table)` reads the same rows.
So does a vector quantizer that makes these vectors by `zeros(...).scatter_(1, tokens, 1)`. Its sum of the rows of each
code, `states.T @ one_hot`, is `index_add_`, and `bincount` counts them.

`-(target * log_softmax(logits)).sum(-1)` with a target that is one-hot, or one-hot and smoothed, writes and reads
tokens × classes several times. `cross_entropy(logits, labels, label_smoothing=...)` picks one value of each row and
sums the row.
""",
    detected=f"""
`aten::one_hot`, or `aten::scatter_` with one column of indices, whose result, at most cast, reshaped or counted, enters
a matrix multiplication over the classes or over the tokens, by the recorded shapes; forward and backward pass together
take {percent(LEAST_KERNEL_SHARE)} % of the GPU's time at least. Or: the same ops, whose result, at most cast, scaled or
shifted, is multiplied elementwise by a `log_softmax` of the same shape and then summed, or enters `kl_div` or a
`cross_entropy` with distributions. Not where two such results are mixed.
""",
    gain=f"""
The kernels of the vectors, the cast and the multiplication become the traffic of the rows that are read and written,
those of their backward pass the traffic of a gradient of the table and of the rows, at
{percent(calibrated.FUSED_MEMORY.value)} % of the memory ceiling ({percent(calibrated.FUSED_MEMORY.low)} to
{percent(calibrated.FUSED_MEMORY.high)} %). In a loss, `log_softmax` and its backward pass stay; all else becomes one
pass over fp32 values forward and three backward at the same rate.
""",
    wrong="""
Soft labels, or vectors that are mixed before the multiplication, are not one-hot.
""",
)


class OneHotLookups(NamedTuple):
    """Multiplications that are lookups, forward."""

    stretches: Stretches
    tokens: int
    classes: int
    width: int
    sums: bool
    """Whether the largest sums rows by class, where the others read rows."""


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes a lookup in place of the multiplication, and torch's cross entropy in place of a loss over all
    classes."""
    yield from _lookup(case)
    yield from _loss(case)


def _loss(case: Analysis) -> Iterator[Proposal]:
    """Proposes labels in place of distributions over the classes."""
    losses = find_one_hot_losses(case)
    if not losses or case.roofline is None:
        return
    graph, ops = case.graph, case.trace.ops
    forward = case.nodes_within(case.ops_at(row for one in losses for row in one.replaced)) & graph.on_gpu
    forward &= ~case.nodes_within(case.ops_named(lambda name: "log_softmax" in name))
    first, last = (np.array([getattr(one, name) for one in losses]) for name in ("product", "total"))
    products = Stretches.of(ops, first, last)
    known = np.array([one.sums for one in losses])
    backward = np.append(known, False)[nodes_in(graph, backward_of(case, products))] & graph.on_gpu & ~forward
    took, whole = (float(graph.duration_ns[mask].sum()) for mask in (forward | backward, graph.on_gpu))
    if took < LEAST_KERNEL_SHARE * whole:
        return
    tokens, classes = max(((one.tokens, one.classes) for one in losses), key=math.prod)
    one_pass = float(sum(LOSS_BYTES * one.tokens * one.classes for one in losses))
    moved = ((forward, FORWARD_PASSES * one_pass), (backward, BACKWARD_PASSES * one_pass))
    best, usual, worst = _moving(case.roofline, moved)
    text = (
        f"targets of {tokens:,} × {classes:,} values are made from labels and multiplied by log-probabilities:"
        f" {duration(case.per_step(took))} of GPU time {case.unit.a}, forward and backward"
    )
    yield Proposal(
        title="cross entropy of labels in place of distributions",
        evidence=spans(case, text, forward | backward),
        fix=assigned("loss", Code("torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)"))
        + "  # instead of one_hot(labels) * log_softmax(logits)",
        change=usual,
        best=best,
        worst=worst,
        claims=("logits",),
        item=("one-hot targets multiplied by log-probabilities", "the cross entropy of the labels gives the same"),
        key="loss",
    )


def _lookup(case: Analysis) -> Iterator[Proposal]:
    """Proposes to read rows of the table instead of multiplying."""
    found = find_lookups(case)
    if found is None or case.roofline is None:
        return
    graph, back = case.graph, backward_of(case, found.stretches)
    forward, backward = ((nodes_in(graph, one) >= 0) & graph.on_gpu for one in (found.stretches, back))
    nodes = forward | backward
    took, whole = (float(graph.duration_ns[mask].sum()) for mask in (nodes, graph.on_gpu))
    if not took or took < LEAST_KERNEL_SHARE * whole:
        return
    text = (
        f"{found.tokens:,} one-hot vectors of {found.classes:,} are multiplied by a table of width {found.width:,}:"
        f" {duration(case.per_step(took))} of GPU time {case.unit.a}, forward and backward"
    )
    rows, table = (ELEMENT_BYTES * count * found.width for count in (found.tokens, found.classes))
    calls = len(found.stretches)
    moved = ((forward, calls * 2 * rows), (backward, calls * (table + 3 * rows)))
    best, usual, worst = _moving(case.roofline, moved)
    yield Proposal(
        title="sums by index in place of one-hot vectors" if found.sums else "an embedding in place of one-hot vectors",
        evidence=spans(case, text, nodes),
        fix=assigned("sums", Code("torch.zeros_like(table).index_add_(0, tokens, states)"))
        + "  # instead of states.T @ one_hot; their counts: "
        + code("torch.bincount(tokens, minlength=len(table))")
        if found.sums
        else assigned("states", Code("torch.nn.functional.embedding(tokens, table)"))
        + "  # instead of one_hot(tokens) @ table",
        change=usual,
        best=best,
        worst=worst,
    )


def _moving(roofline: Roofline, moved: Sequence[tuple[Mask, float]]) -> list[Change]:
    """The graph whose nodes take as long as their bytes at the rate of a fused kernel, and never longer than now: at
    best, as expected, at worst. moved: (nodes, bytes)."""
    ceiling = roofline.ceilings.memory_bytes_per_s / 1e9
    rates = [ceiling * share for share in calibrated.FUSED_MEMORY.falling]
    return [partial(at_most, parts=[(nodes, size / rate) for nodes, size in moved]) for rate in rates]


def find_lookups(case: Analysis) -> OneHotLookups | None:
    """Matrix multiplications with one-hot vectors; None where there are none, or no shapes were recorded."""
    ops = case.trace.ops
    kept: list[tuple[int, int, tuple[int, int, int, bool]]] = []
    for row in case.outermost(case.ops_named(MAKING.__contains__)).tolist():
        tokens = tokens_of(case, row)
        matmul = None if tokens is None else _matmul(case, row, tokens)
        if matmul is not None:
            kept.append((row, *matmul))
    if not kept:
        return None
    first, last, sizes = zip(*kept, strict=True)
    stretches = Stretches.of(ops, np.array(first), np.array(last))
    return OneHotLookups(stretches, *max(sizes, key=lambda size: math.prod(size[:3])))


def _matmul(case: Analysis, row: int, tokens: int) -> tuple[int, tuple[int, int, int, bool]] | None:
    """(row of the multiplication that the vectors go into, (tokens, classes, width, whether it sums rows)); None where
    another op comes first."""
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    is_filled = case.trace.text(int(ops.name[row])) != "aten::one_hot"  # then its shape is that of the vectors
    wide = next((shape[-1] for shape in shapes_in(case, int(ops.dims[row])) if shape and is_filled), None)
    later = np.flatnonzero(
        (ops.kind == OP) & (ops.thread == ops.thread[row]) & (parent == parent[row]) & (ops.start_ns >= ops.end_ns[row])
    )
    for other in later[np.argsort(ops.start_ns[later], kind="stable")].tolist():
        name = case.trace.text(int(ops.name[other])) or ""
        if name in BETWEEN or name in COUNTS:
            continue
        shapes = [one for one in shapes_in(case, int(ops.dims[other])) if one]
        if not (name in MATMULS or is_matmul(name)) or len(shapes) < 2 or len(shapes[1]) != 2:
            return None
        classes = shapes[0][-1]
        if math.prod(shapes[0][:-1]) == tokens and classes in shapes[1] and wide in (None, classes):
            return other, (tokens, classes, math.prod(shapes[1]) // classes, False)
        if len(shapes[0]) == 2 and shapes[0][1] == shapes[1][0] == tokens and wide in (None, shapes[1][1]):
            return other, (tokens, shapes[1][1], shapes[0][0], True)
        return None
    return None


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "multiplications with one-hot vectors",
        "all but one number of each row are zero, so a lookup gives the same",
    ),
    synonyms=("embedding", "lookup", "one_hot_vectors", "label_smoothing", "vector_quantization", "codebook"),
    titles=(
        "an_embedding_in_place_of_one_hot_vectors",
        "sums_by_index_in_place_of_one_hot_vectors",
        "cross_entropy_of_labels_in_place_of_distributions",
    ),
)
