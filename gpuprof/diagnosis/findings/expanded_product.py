"""A broadcast multiply and sum, or differences of all pairs, in place of a matrix multiplication."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration.quoted import percent, us
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.gpu.replace_work import replacement_of, with_replacement
from gpuprof.diagnosis.detect.passes import backward_of, shapes_in, siblings
from gpuprof.diagnosis.result.fix import call, code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.tracefile.trace import F64
from gpuprof.units import Assumed, Ns, Ops, Share, Times

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_PRODUCT_SHARE: Assumed[Share] = 0.03
"""Smallest share of GPU time in such ops for a proposal."""
EXPANDS_TIMES: Assumed[Times] = 8
"""Smallest ratio of the expanded tensor's elements to the larger operand's; with less it is a mask or a bias."""
MOST_OPS: Assumed[Ops] = 4
"""Most ops on the expanded tensor before it is summed up."""
SHORTEST_MATMUL_NS: Assumed[Ns] = 10_000.0
"""Shortest time of a matrix multiplication, including laying out its operands, ns."""
_SUMS = frozenset({"aten::sum", "aten::mean", "aten::linalg_vector_norm", "aten::norm"})
_VIEWS = frozenset({"aten::unsqueeze", "aten::expand", "aten::view", "aten::reshape", "aten::slice", "aten::transpose"})
_SQUARES = frozenset({"aten::pow", "aten::square", "aten::mul"})

PAGE = Page(
    id="expanded_product",
    title="A broadcast multiply and sum replaces a matrix multiplication",
    means="""
`(a[:, :, None] * b[:, None, :]).sum(-1)` writes every single product to memory, reads all of them again to add them
up, and keeps them for the backward pass: as many bytes as a matrix multiplication has FLOPs, at a hundredth of the
speed. The same holds for all pairwise distances, `((x[:, None] - y[None]) ** 2).sum(-1)`. `torch.einsum`, `@` or
`torch.cdist` never create that tensor.
""",
    detected=f"""
A product whose result has {EXPANDS_TIMES} times the elements of either operand or more (by their shapes), summed up by
the next op on it; or a difference that is squared and summed up. With their backward pass they must take at least
{percent(LEAST_PRODUCT_SHARE)} % of the GPU's time. Not detected without shapes.
""",
    gain=f"""
The ops and their backward pass become one matrix multiplication forward and two backward, each
{calibrated.EXPANDED_LEFT.value:g} times ({calibrated.EXPANDED_LEFT.low:g} to {calibrated.EXPANDED_LEFT.high:g},
assumed) its time at the GPU's rate for this type, and at least {us(SHORTEST_MATMUL_NS)} µs.
""",
    wrong=f"""
Distances by a matrix multiplication round differently where two points are close to each other. Where something else
also uses the expanded tensor, it is needed: the probability is {percent(calibrated.EXPANDED_ODDS.value)} % (assumed).
""",
)


class Expanded(NamedTuple):
    """Expanded products with what sums them up; columns by product."""

    stretches: Stretches
    elements: F64
    """Elements of the expanded tensor."""
    largest: tuple[int, ...]
    """Shape of the largest one."""
    distances: bool
    """Whether the largest one holds differences."""


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes matrix multiplications in place of expanded products."""
    found = find_expanded(case)
    if found is None or case.roofline is None:
        return
    graph, count = case.graph, len(found.elements)
    forward = nodes_in(graph, found.stretches)
    backward = np.where(forward >= 0, -1, nodes_in(graph, backward_of(case, found.stretches)))
    group = np.where(forward >= 0, forward, np.where(backward >= 0, backward + count, -1))
    group[graph.waits] = -1
    gpu = (group >= 0) & graph.on_gpu
    took, whole = (float(graph.duration_ns[mask].sum()) for mask in (gpu, graph.on_gpu))
    if took < LEAST_PRODUCT_SHARE * whole:
        return
    host = (group >= 0) & ~graph.on_gpu
    host_ns: F64 = np.bincount(group[host], weights=graph.duration_ns[host], minlength=2 * count).astype(np.float64)
    before: F64 = np.bincount(group[gpu], weights=graph.duration_ns[gpu], minlength=2 * count).astype(np.float64)
    flops = case.roofline.ceilings.flops
    rate = flops.get("tf32") or flops.get("fp32") or 0.0
    if not rate:
        return
    pieces = np.tile([1, 2], (count, 1)).T.ravel()

    def change(level: int):
        each = np.maximum(calibrated.EXPANDED_LEFT.rising[level] * 2 * found.elements / rate * 1e9, SHORTEST_MATMUL_NS)
        wanted = np.minimum(np.concatenate([each, 2 * each]), before)
        return partial(with_replacement, replacement=replacement_of(graph, group, host_ns, wanted, pieces))

    shape = " × ".join(f"{n:,}" for n in found.largest)
    what = "differences" if found.distances else "products"
    text = (
        f"{what} of {shape} elements are written to memory and summed up: {duration(case.per_step(took))} of GPU time"
        f" {case.unit.a} with the backward pass, {100 * took / whole:,.0f} % of it"
    )
    yield Proposal(
        title="a matrix multiplication in place of an expanded product",
        evidence=spans(case, text, gpu),
        fix=call("torch.cdist", ..., ...) + "  # or x·x - 2 x @ y.T + y·y: not (x[:, None] - y[None]).pow(2).sum(-1)"
        if found.distances
        else code("torch.einsum") + "  # or a @ b: not (a[..., None] * b).sum(...)",
        change=change(1),
        best=change(0),
        worst=change(2),
        odds=calibrated.EXPANDED_ODDS.value,
        needs="nothing else uses the expanded tensor",
    )


def find_expanded(case: Analysis) -> Expanded | None:
    """Expanded products and differences of the window; None where there are none."""
    rows, family = siblings(case)
    ops, strings = case.trace.ops, case.trace.strings
    named = [strings[i] for i in ops.name[rows].tolist()] if len(rows) else []
    kept: list[tuple[int, int, tuple[int, ...], bool]] = []
    for at, name in enumerate(named):
        if name not in ("aten::mul", "aten::sub"):
            continue
        shape = _expanded(shapes_in(case, int(ops.dims[rows[at]])))
        end = None if shape is None else _summed(case, rows, family, named, at, shape, name == "aten::sub")
        if shape is not None and end is not None:
            kept.append((int(rows[at]), int(rows[end]), shape, name == "aten::sub"))
    if not kept:
        return None
    first, last, shapes, differences = zip(*kept, strict=True)
    begin, end = np.array(first), np.array(last)
    elements = np.array([math.prod(shape) for shape in shapes], np.float64)
    largest = int(elements.argmax())
    stretches = Stretches.of(ops, begin, end)
    return Expanded(stretches, elements, shapes[largest], differences[largest])


def _expanded(shapes: list[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """The shape of an elementwise op's result, where it has far more elements than either operand."""
    operands = [shape for shape in shapes[:2] if shape]
    if len(operands) < 2:
        return None
    try:
        result = tuple(int(n) for n in np.broadcast_shapes(*operands))
    except ValueError:
        return None
    return result if math.prod(result) >= EXPANDS_TIMES * max(map(math.prod, operands)) else None


def _summed(
    case: Analysis, rows: np.ndarray, family: np.ndarray, named: list[str], at: int, shape: tuple[int, ...],
    square: bool,
) -> int | None:  # fmt: skip
    """The op that sums up an expanded tensor, as a position; None where something else is done with it."""
    squared = not square
    for later in range(at + 1, min(at + 1 + MOST_OPS, len(rows))):
        if family[later] != family[at]:
            return None
        if named[later] in _VIEWS:
            continue
        shapes = shapes_in(case, int(case.trace.ops.dims[rows[later]]))
        if shape not in shapes:
            return None
        if named[later] in _SUMS:
            return later if squared or named[later] in ("aten::linalg_vector_norm", "aten::norm") else None
        if not (square and named[later] in _SQUARES):
            return None
        squared = True
    return None


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "expanded products that are summed up",
        "the expanded tensor is written and read again, where a matrix multiplication adds it up at once",
    ),
    synonyms=("einsum", "broadcast", "cdist", "pairwise_distance"),
    titles=("a_matrix_multiplication_in_place_of_an_expanded_product",),
)
