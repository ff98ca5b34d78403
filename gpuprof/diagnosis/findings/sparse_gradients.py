"""Large embedding tables of which a step touches few rows have dense gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration.quoted import percent
from gpuprof.costs.arguments import nested_shapes, parse
from gpuprof.costs.formulas.gemm import is_matmul
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.transform import scaled
from gpuprof.timeline.phases import OPTIMIZER
from gpuprof.tracefile.trace import F64, OP
from gpuprof.units import Assumed, Elements, Place, Published, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

MOST_TOUCHED: Assumed[Share] = 0.1
"""Largest share of a table's rows that a step looks up for sparse gradients to gain."""
FEWEST_ELEMENTS: Assumed[Elements] = 10_000_000
"""Fewest elements of a table; passes over smaller ones take no longer than launches."""
LEAST_DENSE_SHARE: Assumed[Share] = 0.03
"""Smallest share of the step in dense gradients for a proposal."""
TOUCHED_PASSES: Assumed[tuple[float, float, float]] = (1.0, 3.0, 8.0)
"""Time of a pass over the touched rows / their share of a dense pass, at best, as expected, at worst: they are
gathered, sorted and added up first."""
ODDS: Assumed[Share] = 0.85
"""Probability that neither clipping nor weight decay stands in the way."""
_ROWS: Published[Place] = 2
"""Place of the number of rows among the arguments of `embedding_dense_backward`."""
_DENSE = "aten::embedding_dense_backward"

PAGE = Page(
    id="sparse_gradients",
    applies=("training",),
    title="Large embedding tables have dense gradients",
    means="""
Recommenders and graph neural networks have tables of millions of rows, of which a batch looks up some ten thousand. By
default the gradient is as large as the table: each step fills it with zeros, and the optimizer reads and writes the
whole table and its states. With `sparse=True` the gradient has only the touched rows, and an optimizer for such
gradients (`torch.optim.SparseAdam`, `SGD`, `Adagrad`) updates only those.
""",
    detected=f"""
`aten::embedding_dense_backward` runs for tables of 10 million elements or more that have at least ten times as many
rows as there are indices, and that no matrix multiplication uses (the tied head of a language model does). Together
with the optimizer's passes over these tables it takes at least {percent(LEAST_DENSE_SHARE)} % of the step. The
optimizer's time is divided by the elements of the tensors in its lists; where these are not recorded, only filling the
gradient counts. Not detected without shapes.
""",
    gain=f"""
Fills of the whole gradient, and the optimizer's work on the tables, become passes over the touched rows: their share of
the rows, times {TOUCHED_PASSES[1]:g} ({TOUCHED_PASSES[0]:g} to {TOUCHED_PASSES[2]:g}, assumed).
""",
    wrong=f"""
It changes the training: `SparseAdam` leaves the moments of untouched rows alone, while dense `Adam` decays them and
keeps updating these rows. Weight decay and clipping by a norm do not take sparse gradients: the probability is {ODDS:g}
(assumed).
""",
)


@dataclass(frozen=True, slots=True)
class Dense:
    """Work on whole tables."""

    left: tuple[F64, F64, F64]
    """Factor of each node of the graph, at best, usually and at worst."""
    rows: int
    touched: int
    """Indices of a step that are looked up in the largest table."""


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes gradients of the touched rows alone."""
    found = find_dense(case)
    if found is None:
        return
    graph = case.graph
    gone = graph.duration_ns * (1.0 - found.left[1])
    if case.per_step(float(gone.sum())) < LEAST_DENSE_SHARE * case.step_ns:
        return
    nodes = found.left[1] < 1.0
    text = (
        f"gradients of tables of up to {found.rows:,} rows are dense, and a step looks up {found.touched:,}:"
        f" filling them and the optimizer's passes over all rows take {duration(case.per_step(float(gone.sum())))} of"
        " GPU time more than the rows that are looked up"
    )
    best, usual, worst = (_change(left) for left in found.left)
    yield Proposal(
        title="sparse gradients of large tables",
        evidence=spans(case, text, nodes),
        fix=code("torch.nn.Embedding(..., sparse=True)\n")
        + code("torch.optim.SparseAdam(tables)")
        + "  # the other parameters keep their optimizer",
        change=usual,
        best=best,
        worst=worst,
        claims=("optimizer_step",),
        odds=ODDS,
        needs="no weight decay of the tables, and no clipping of their gradients by a norm",
        changes="rows that a batch does not look up keep their values and moments",
    )


def _change(left: F64) -> Change:
    return partial(scaled, nodes=left != 1.0, factor=left)


def find_dense(case: Analysis) -> Dense | None:
    """Large tables with dense gradients of few rows; None without any."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    rows = case.ops_named(lambda name: name == _DENSE) & (ops.kind == OP) & (ops.start_ns >= low)
    tables: dict[tuple[int, ...], float] = {}
    most, touched = 0, 0
    for row in np.flatnonzero(rows & (ops.start_ns < high)).tolist():
        shapes = shapes_in(case, int(ops.dims[row]))[:2]
        given = parse("", "[]", None, None, case.trace.text(int(ops.concrete[row]))).text(_ROWS)
        if len(shapes) < 2 or not shapes[0] or shapes[1] is None or not given.isdigit():
            continue
        table, count = (int(given), shapes[0][-1]), math.prod(shapes[1])
        if math.prod(table) >= FEWEST_ELEMENTS and count <= MOST_TOUCHED * table[0]:
            tables[table] = max(tables.get(table, 0.0), count / table[0])
            most, touched = max((most, touched), (math.prod(table), count))
    tables = {table: share for table, share in tables.items() if not _multiplied(case, table)}
    if not tables:
        return None
    factors = [_factors(case, tables, passes) for passes in TOUCHED_PASSES]
    return Dense((factors[0], factors[1], factors[2]), max(table[0] for table in tables), touched)


def _multiplied(case: Analysis, table: tuple[int, ...]) -> bool:
    """Whether matrix multiplications take tensors of a table's shape: it may be the head as well, whose gradient is
    dense."""
    ops = case.trace.ops
    rows = case.ops_named(lambda name: is_matmul(name) or name in ("aten::t", "aten::linear"))
    shapes = (shape for dims in np.unique(ops.dims[rows]) for shape in shapes_in(case, int(dims)))
    return any(shape in (table, table[::-1]) for shape in shapes)


def _factors(case: Analysis, tables: dict[tuple[int, ...], float], passes: float) -> F64:
    """Per node of the graph the share of its time that remains."""
    ops, graph = case.trace.ops, case.graph
    factor = np.ones(len(ops) + 1)
    fills = case.ops_named(lambda name: name in ("aten::fill_", "aten::zero_"))
    optimizes = case.timeline.host.op == OPTIMIZER
    for row in np.flatnonzero((fills | optimizes) & (ops.kind == OP)).tolist():
        shapes = next((one for one in nested_shapes(case.trace.text(int(ops.dims[row]))) if one), [])
        whole = sum(math.prod(shape) for shape in shapes)
        large = sum(math.prod(shape) * (1.0 - min(passes * tables[shape], 1.0)) for shape in shapes if shape in tables)
        if large:
            factor[row] = 1.0 - large / whole
    launched = np.append(case.timeline.links.op, -1)[graph.gpu_row]
    return np.where(graph.on_gpu & (launched >= 0), factor[launched], 1.0)


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem("passes over whole tables of which few rows change", "few rows are looked up", unadvised=True),
    synonyms=("sparse", "sparse_adam", "embedding_tables", "dense_gradients"),
    titles=("sparse_gradients_of_large_tables",),
)
