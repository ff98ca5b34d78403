"""Rows of a table are read by a matrix multiplication with one-hot vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.costs.gemm import is_matmul
from gpuprof.diagnosis.detect.declaration import Declaration
from gpuprof.diagnosis.detect.evidence import spans
from gpuprof.diagnosis.detect.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.passes import backward_of, shapes_in
from gpuprof.diagnosis.detect.proposal import Page, Proposal
from gpuprof.diagnosis.fix import Code, assigned
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.tracefile.trace import OP
from gpuprof.units import Assumed, Bytes, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

LEAST_KERNEL_SHARE: Assumed[Share] = 0.02
"""Of the GPU's time the share from which on it is worth a look: with few classes the vectors are short."""
BETWEEN = frozenset({"aten::to", "aten::view", "aten::reshape", "aten::flatten", "aten::unsqueeze", "aten::contiguous"})
"""Ops between the vectors and the multiplication that compute nothing else."""
PRODUCTS = frozenset({"aten::matmul", "aten::linear", "aten::einsum"})
ELEMENT_BYTES: Assumed[Bytes] = 4
"""Bytes of an element: one-hot vectors are cast to what the table has, fp32 as a rule."""

PAGE = Page(
    id="one_hot",
    title="A table is read by multiplying with one-hot vectors",
    means="""
`one_hot(tokens, classes).float() @ table` writes a vector of zeros with a single one for every token, casts it, and
multiplies all of it by the table, forward and for the table's gradient. `embedding(tokens, table)` reads the same rows.
""",
    detected="""
`aten::one_hot` whose result, at most cast or reshaped, enters a matrix multiplication over the classes, by the
recorded shapes; forward and backward pass together take 2 % of the GPU's time at least.
""",
    gain="""
The kernels of the vectors, the cast and the multiplication become the traffic of the rows that are read and written,
those of their backward pass the traffic of a gradient of the table and of the rows, at 65 % of the memory ceiling (45
to 85 %).
""",
    wrong="""
Soft labels, or vectors that are mixed before the multiplication, are not one-hot.
""",
)


class Lookups(NamedTuple):
    """Multiplications that are lookups, forward."""

    stretches: Stretches
    tokens: int
    classes: int
    width: int


def find(case: Analysis) -> Iterator[Proposal]:
    """A lookup in place of the multiplication."""
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

    ceiling = case.roofline.ceilings.memory_bytes_per_s / 1e9

    def lookup(level: int) -> Change:
        rate = ceiling * calibrated.FUSED_MEMORY.falling[level]

        def change(graph: Graph) -> Graph:
            duration = graph.duration_ns.copy()
            for mask, moved in ((forward, 2 * rows), (backward, table + 3 * rows)):
                now = float(duration[mask].sum())
                if now > 0:
                    duration[mask] *= min(calls * moved / rate / now, 1.0)
            return graph.with_durations(duration)

        return change

    yield Proposal(
        title="an embedding in place of one-hot vectors",
        evidence=spans(case, text, nodes),
        fix=assigned("states", Code("torch.nn.functional.embedding(tokens, table)"))
        + "  # instead of one_hot(tokens) @ table",
        change=lookup(1),
        best=lookup(0),
        worst=lookup(2),
    )


def find_lookups(case: Analysis) -> Lookups | None:
    """Matrix multiplications with one-hot vectors; None where there are none, or no shapes were recorded."""
    ops = case.trace.ops
    kept: list[tuple[int, int, tuple[int, int, int]]] = []
    for row in case.outermost(case.ops_named("aten::one_hot".__eq__)).tolist():
        shape = next((one for one in shapes_in(case, int(ops.dims[row])) if one), None)
        product = None if shape is None else _product(case, row, math.prod(shape))
        if product is not None:
            kept.append((row, *product))
    if not kept:
        return None
    first, last, sizes = zip(*kept, strict=True)
    starts, ends = np.array(first), np.array(last)
    stretches = Stretches(ops.thread[starts].astype(np.int64), ops.start_ns[starts], ops.end_ns[ends])
    return Lookups(stretches, *max(sizes, key=math.prod))


def _product(case: Analysis, row: int, tokens: int) -> tuple[int, tuple[int, int, int]] | None:
    """(row of the multiplication that the vectors go into, (tokens, classes, width)); None where another op comes
    first."""
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    later = np.flatnonzero(
        (ops.kind == OP) & (ops.thread == ops.thread[row]) & (parent == parent[row]) & (ops.start_ns >= ops.end_ns[row])
    )
    for other in later[np.argsort(ops.start_ns[later], kind="stable")].tolist():
        name = case.trace.text(int(ops.name[other])) or ""
        if name in BETWEEN:
            continue
        shapes = [one for one in shapes_in(case, int(ops.dims[other])) if one]
        if not (name in PRODUCTS or is_matmul(name)) or len(shapes) < 2 or len(shapes[1]) != 2:
            return None
        classes = shapes[0][-1]
        if math.prod(shapes[0][:-1]) != tokens or classes not in shapes[1]:
            return None
        return other, (tokens, classes, math.prod(shapes[1]) // classes)
    return None


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "matrix multiplications with one-hot vectors",
        "all but one number of each row are zero: a lookup of rows gives the same",
    ),
    synonyms=("embedding", "lookup", "one_hot_vectors"),
    titles=("an_embedding_in_place_of_one_hot_vectors",),
)
