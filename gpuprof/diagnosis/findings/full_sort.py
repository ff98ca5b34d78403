"""Whole rows are sorted although only the first few values of each are used, or 16-bit values are sorted in 32 bits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuprof.calibration import slow as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.costs.arguments import parse
from gpuprof.costs.dtypes import element_bytes, format_of
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.passes import like_before, shapes_in, types_in
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.transform import at_most, removed, scaled
from gpuprof.tracefile.trace import I64, OP
from gpuprof.units import Assumed, Ops, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

LEAST_SORT_SHARE: Assumed[Share] = 0.02
"""Smallest share of GPU time of such sorts for a proposal."""
MOST_USED: Assumed[Share] = 1 / 8
"""Largest part of a row that is used: with more, a sort is as fast as a selection."""
VIEWS = frozenset({"aten::slice", "aten::narrow", "aten::select", "aten::as_strided", "aten::detach", "aten::to"})
"""Ops on the result that launch nothing."""
SLICES = frozenset({"aten::slice"})
MOST_OPS_BETWEEN: Assumed[Ops] = 16
"""Most ops on other tensors between a slice of a sorted tensor and what reads it."""
RADIX = re.compile(r"radix_?sort", re.IGNORECASE)
"""Kernels whose passes depend on the number of bits."""
SORTS = frozenset({"aten::sort", "aten::argsort"})

PAGE = Page(
    id="full_sort",
    title="Whole rows are sorted for their first values",
    means="""
`torch.sort(x)[0][..., :k]` sorts all values of a row, in six passes or more that move values and indices, and then
throws away all but the first k. `torch.topk(x, k)` finds them in a few passes that only read.

A sort takes as many passes as its values have digits: 16-bit values that are cast to fp32 first need twice as many, for
the same order.
""",
    detected=f"""
`aten::sort` on rows of which the next op that computes sees an eighth or less, by the recorded shapes; at least
{percent(LEAST_SORT_SHARE)} % of the GPU's time. If a slice of the result, whose numbers were recorded, comes directly
after the sort, up to {MOST_OPS_BETWEEN:g} ops on other tensors may come before it. Or radix sorts of fp32 values, cast
from bf16 or fp16 by the op before, that take this share. Not detected without shapes and types.
""",
    gain=f"""
The sort's kernels take as long as reading its input {calibrated.TOPK_PASSES.value:g} times
({calibrated.TOPK_PASSES.low:g} to {calibrated.TOPK_PASSES.high:g}, assumed) at the memory ceiling, and never longer
than now. The order within the k values is the same; that of equal values may differ. Sorted in 16 bits: the cast is
gone, and the radix sort's kernels take {calibrated.SORT_16_BITS.value:g} times as long ({calibrated.SORT_16_BITS.low:g}
to {calibrated.SORT_16_BITS.high:g}, assumed): half the passes, each of which moves 10 bytes a value rather than 12.
""",
    wrong="""
If the rest of the sorted row is used later (a cumulative sum for top-p sampling), it has to be sorted. Very short rows
gain nothing.
""",
)


class Sorted(NamedTuple):
    """Sorts whose result is mostly unused."""

    ops: I64
    """Rows of the outermost ops."""
    read_bytes: I64
    """Bytes of each sort's input."""
    width: int
    used: int
    """width, used: values per row of the widest sort, and how many of them are used."""


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes a selection instead of a sort, and a sort before a cast instead of after it."""
    yield from _selection(case)
    yield from _before_the_cast(case)


def _before_the_cast(case: Analysis) -> Iterator[Proposal]:
    casts = {row: cast for row in _sorts(case).tolist() if (cast := _cast_of(case, row)) is not None}
    if not casts:
        return
    graph = case.graph
    sorting, casting = (case.nodes_within(case.ops_at(rows)) & graph.on_gpu for rows in (casts, casts.values()))
    sorting &= case.nodes_of_gpu(case.trace.rows_named(case.trace.gpu.name, RADIX.search))
    took, whole = (float(graph.duration_ns[mask].sum()) for mask in (sorting, graph.on_gpu))
    if not took or took < LEAST_SORT_SHARE * whole:
        return
    half, wide = (_format(case, cast, at) for cast in list(casts.values())[:1] for at in (1, 0))

    def change_to(level: int) -> Change:
        factor = calibrated.SORT_16_BITS.rising[level]
        return lambda graph: scaled(removed(graph, casting), sorting, factor)

    yield Proposal(
        title="sorted before the cast",
        evidence=spans(
            case,
            f"{half} values are cast to {wide} and then sorted: {duration(case.per_step(took))} of GPU time"
            f" {case.unit.a} in passes over twice the bits",
            sorting,
        ),
        fix=code("values, places = torch.sort(x, dim=-1)") + "  # then values.float(), not torch.sort(x.float())",
        change=change_to(1),
        best=change_to(0),
        worst=change_to(2),
        key="cast",
    )


def _selection(case: Analysis) -> Iterator[Proposal]:
    found = find_sorts(case)
    if found is None or case.roofline is None:
        return
    nodes = case.nodes_within(case.ops_at(found.ops.tolist())) & case.graph.on_gpu
    took, whole = (float(case.graph.duration_ns[mask].sum()) for mask in (nodes, case.graph.on_gpu))
    if not took or took < LEAST_SORT_SHARE * whole:
        return
    text = (
        f"rows of {found.width:,} values are sorted, of which {found.used:,} are used:"
        f" {duration(case.per_step(took))} of"
        f" GPU time {case.unit.a}"
    )
    yield Proposal(
        title="torch.topk in place of a sort",
        evidence=spans(case, text, nodes),
        fix=code(f"values, places = torch.topk(x, {found.used}, dim=-1)") + "  # instead of torch.sort(x)[...][:k]",
        change=_selected(case, found, 1),
        best=_selected(case, found, 0),
        worst=_selected(case, found, 2),
    )


def find_sorts(case: Analysis) -> Sorted | None:
    """Sorts whose next computing op reads only a small part of each row; None if there are none."""
    ops, nesting = case.trace.ops, case.timeline.nesting.parent
    kept: list[tuple[int, int, int, int]] = []
    for row in _sorts(case).tolist():
        shape = next((one for one in shapes_in(case, int(ops.dims[row])) if one), None)
        if shape is None:
            continue
        used = _used(case, row, shape, nesting)
        if used is not None and used <= MOST_USED * shape[-1]:
            kept.append((row, math.prod(shape) * _bytes(case, row), shape[-1], used))
    if not kept:
        return None
    rows, sizes, widths, firsts = zip(*kept, strict=True)
    widest = int(np.argmax(widths))
    return Sorted(np.array(rows), np.array(sizes), widths[widest], firsts[widest])


def _sorts(case: Analysis) -> I64:
    return case.outermost(case.ops_named(SORTS.__contains__))


def _cast_of(case: Analysis, row: int) -> int | None:
    """The copy that casts a sort's input from 16 bits, if it is the op before the sort."""
    ops = case.trace.ops
    last = like_before(case, row, int(ops.start_ns[row])) if _format(case, row, 0) == "fp32" else None
    if last is None or case.trace.text(int(ops.name[last])) != "aten::copy_":
        return None
    return last if _format(case, last, 1) in ("bf16", "fp16") else None


def _format(case: Analysis, row: int, at: int) -> str:
    """Number format of an op's argument; empty if it is no tensor, or was not recorded."""
    return format_of(types[at]) if at < len(types := types_in(case, row)) else ""


def _used(case: Analysis, row: int, shape: tuple[int, ...], nesting: I64) -> int | None:
    """Values per row that the next op after a sort reads, beyond views and enclosing ops; None if it reads all of them,
    or if unknown. Where the result is sliced first, and how is recorded, ops on other tensors may come in between."""
    ops = case.trace.ops
    later = np.flatnonzero(
        (ops.kind == OP)
        & (ops.thread == ops.thread[row])
        & (nesting == nesting[row])
        & (ops.start_ns >= ops.end_ns[row])
    )
    kept, others = None, 0
    for other in later[np.argsort(ops.start_ns[later], kind="stable")].tolist():
        shapes = [one for one in shapes_in(case, int(ops.dims[other])) if one]
        name = case.trace.text(int(ops.name[other]))
        if name in SLICES and shape in shapes and not others:
            kept = _kept(case, other, len(shape)) or kept
        if name in VIEWS or not shapes:
            continue
        like = [one[-1] for one in shapes if one[:-1] == shape[:-1]]
        if shape[-1] in like or (kept is None and (not like or len(shape) < 2)):
            return None
        if kept is None or kept in like or others == MOST_OPS_BETWEEN:
            return kept or min(like)
        others += 1
    return kept


def _kept(case: Analysis, row: int, dimensions: int) -> int | None:
    """Values of each row that a slice takes; None if it takes rows, or if its numbers were not recorded."""
    numbers = parse("", None, None, None, case.trace.text(int(case.trace.ops.concrete[row]))).concrete
    if len(numbers) < 4 or not all(re.fullmatch(r"-?\d+", number) for number in numbers[1:4]):
        return None
    at, start, end = map(int, numbers[1:4])
    return end - start if at % dimensions == dimensions - 1 and 0 <= start < end else None


def _bytes(case: Analysis, row: int) -> int:
    """Bytes per element of a sort's input."""
    return element_bytes(next(iter(types_in(case, row)), "")) or 2


def _selected(case: Analysis, found: Sorted, level: int) -> Change:
    """The graph with selections: the first kernel of each sort takes all the time, and the others none. level: 0 at
    best."""
    assert case.roofline is not None
    rate = case.roofline.ceilings.memory_bytes_per_s
    parts = list[tuple[I64, float]]()
    for row, size in zip(found.ops.tolist(), found.read_bytes.tolist(), strict=True):
        wanted = calibrated.TOPK_PASSES.rising[level] * size / rate * 1e9
        parts.append((np.flatnonzero(case.nodes_within(case.ops_at([row])) & case.graph.on_gpu), wanted))
    return partial(at_most, parts=parts)


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "a whole tensor sorted for its first values",
        "all values are put in order, and most of them are not used",
    ),
    synonyms=("topk", "sort", "argsort"),
    titles=("torch_topk_in_place_of_a_sort", "sorted_before_the_cast"),
)
