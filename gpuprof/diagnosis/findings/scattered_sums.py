"""Sums of many rows by index, by atomics or after a sort, where rows that are in order can be added up one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration import latency as latency_calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.costs.dtypes import element_bytes
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.gpu.replace_work import replacement_of, with_replacement
from gpuprof.diagnosis.detect.loops.recurrent_loops import outermost_forward
from gpuprof.diagnosis.detect.passes import shapes_in, types_in
from gpuprof.diagnosis.result.fix import Code, call
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.tracefile.trace import F64, I64
from gpuprof.units import Assumed, Elements, Place, Published, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_ELEMENTS: Assumed[Elements] = 1_000_000
"""Fewest elements that an op adds up: the kernels of fewer take no longer than their launches."""
ROWS_FOR_EACH_SUM: Assumed[Ratio] = 2.0
"""Fewest rows for each sum on average: with fewer, most of the time goes into the sums themselves."""
LEAST_SUMS_SHARE: Assumed[Share] = 0.03
"""Smallest share of GPU time in such sums for a proposal."""
ROWS_PLACE: Published[Place] = 3
"""Place of the rows among the arguments of these ops; the sums are the first, the index is the third."""
_SUMS = frozenset(f"aten::{name}{end}" for name in ("index_add", "scatter_add", "scatter_reduce") for end in ("", "_"))

PAGE = Page(
    id="scattered_sums",
    title="Rows are summed by index although they can be in order",
    means="""
A graph network sums the messages of its edges by node, a set encoder its elements by set, a mixture of experts its
results by token: `index_add`, `scatter_add` and `scatter` of PyTorch Geometric add each row to where its index says, by
atomic additions, or with deterministic algorithms after a sort of all indices at each call. Where rows with the same
index follow one another, `torch.segment_reduce` (or CSR: `torch_sparse`, `torch_scatter.segment_csr`) reads each row
and writes each sum once. Edges are sorted once, before the training or where a batch is made.
""",
    detected=f"""
`index_add`, `scatter_add` and `scatter_reduce` in the forward pass with at least {FEWEST_ELEMENTS / 1e6:g} million
elements, and at least {ROWS_FOR_EACH_SUM:g} rows for each sum, that take {percent(LEAST_SUMS_SHARE)} % of the
GPU's time with all that they launch. Not detected without shapes.
""",
    gain=f"""
Each becomes one kernel that reads its rows and writes its sums at {percent(calibrated.SEGMENT_MEMORY.value)} % of the
memory bandwidth ({percent(calibrated.SEGMENT_MEMORY.low)} to {percent(calibrated.SEGMENT_MEMORY.high)} %, assumed),
with the CPU time of one launch. The backward pass, which spreads each sum's gradient over its rows, stays as it is.
""",
    wrong=f"""
A recording does not show whether an index can be sorted: where it is computed in the step (a router's choice, a
clustering), sorting costs as much as it saves. The probability is {percent(calibrated.SEGMENT_ODDS.value)} % (assumed).
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes sums over segments of rows in order, in place of sums by index."""
    roof, ops = case.roofline, case.trace.ops
    if roof is None:
        return
    rows, moved = _sums(case)
    if not len(rows):
        return
    graph = case.graph
    group = nodes_in(graph, Stretches.of(ops, rows))
    group[graph.waits] = -1
    gpu, host = (group >= 0) & graph.on_gpu, (group >= 0) & ~graph.on_gpu
    took, whole = (float(graph.duration_ns[mask].sum()) for mask in (gpu, graph.on_gpu))
    if took < LEAST_SUMS_SHARE * whole:
        return
    before: F64 = np.bincount(group[gpu], weights=graph.duration_ns[gpu], minlength=len(rows)).astype(np.float64)
    cpu: F64 = np.bincount(group[host], weights=graph.duration_ns[host], minlength=len(rows)).astype(np.float64)

    def change(level: int):
        wanted = moved / roof.ceilings.memory_bytes_per_s * 1e9 / calibrated.SEGMENT_MEMORY.falling[level]
        launch = np.minimum(cpu, latency_calibrated.HOST_LAUNCH_NS.value)
        new = replacement_of(graph, group, launch, np.minimum(wanted, before), np.ones(len(rows), np.int64))
        return partial(with_replacement, replacement=new)

    largest = shapes_in(case, int(ops.dims[rows[int(np.argmax(moved))]]))
    sums, taken = (" × ".join(f"{n:,}" for n in shape or ()) for shape in (largest[0], largest[ROWS_PLACE]))
    text = (
        f"{case.per_step(len(rows)):,.0f} sums by index {case.unit.a}, the largest of {taken} to {sums}:"
        f" {duration(case.per_step(took))} of GPU time in the forward pass, {100 * took / whole:.0f} % of it"
    )
    yield Proposal(
        title="sums over sorted segments instead of by index",
        evidence=spans(case, text, gpu),
        fix=call("torch.segment_reduce", Code("rows"), "sum", lengths=Code("counts"), axis=0, unsafe=True)
        + "  # rows sorted by index once, before the training or in the collate function;\n"
        + "# counts = torch.bincount(index, minlength=sums), once as well",
        change=change(1),
        best=change(0),
        worst=change(2),
        odds=calibrated.SEGMENT_ODDS.value,
        needs="the index comes with the data, so that rows can be sorted by it once",
    )


def _sums(case: Analysis) -> tuple[I64, F64]:
    """(rows of the window's large sums by index, bytes of the rows that each adds up and of its sums)."""
    ops, strings = case.trace.ops, case.trace.strings
    found, moved = [], []
    for row in outermost_forward(case).tolist():
        shapes = shapes_in(case, int(ops.dims[row])) if strings[int(ops.name[row])] in _SUMS else []
        if len(shapes) <= ROWS_PLACE or not (shapes[0] and shapes[ROWS_PLACE]):
            continue
        sums, added = (math.prod(shape or ()) for shape in (shapes[0], shapes[ROWS_PLACE]))
        if added < FEWEST_ELEMENTS or added < ROWS_FOR_EACH_SUM * sums:
            continue
        types = types_in(case, row)
        found.append(row)
        moved.append((added + sums) * ((element_bytes(types[0]) if types else None) or 4))
    return np.array(found, np.int64), np.array(moved, np.float64)


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "sums of rows by index", "atomic additions, or a sort at each call, where rows in order are read once"
    ),
    synonyms=("index_add", "scatter_add", "segment_reduce", "segment_csr", "torch_scatter", "message_passing"),
    titles=("sums_over_sorted_segments_instead_of_by_index",),
)
