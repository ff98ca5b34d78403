"""A small table is looked up again in every layer, for the same large set of indices."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import loops as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.passes import backward_of, shapes_in
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.changes.batch import ACCUMULATE
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.replay.transform import removed, scaled
from gpuprof.timeline.phases import FORWARD
from gpuprof.tracefile.trace import OP, Mask
from gpuprof.units import Assumed, Entries, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_LOOKUPS: Assumed[Entries] = 4
"""Fewest lookups with the same sizes in a forward pass for layers to repeat one."""
LEAST_EACH: Assumed[Ratio] = 64.0
"""Fewest indices for each row of the table: positions have many, words few."""
LEAST_LOOKUPS_SHARE: Assumed[Share] = 0.03
"""Smallest share of the step in repeated lookups for a proposal."""
STAYING_SHARE: Assumed[tuple[Share, Share, Share]] = (0.05, 0.1, 0.4)
"""Share of the removed lookups' time that stays, at best, as expected, at worst: gradients of the shared result are
summed."""
_ACCUMULATED = "torch::autograd::AccumulateGrad"

PAGE = Page(
    id="repeated_lookups",
    applies=("training",),
    title="A small table is looked up again in every layer",
    means="""
Relative positions (as in T5) are a table of a few rows, looked up for each pair of a query and a key: a million indices
for a thousand tokens. The backward pass of a lookup sorts its indices and sums the gradients of each row, in few thread
blocks if the table has few rows. If layers share the table, one lookup per forward pass is enough, and one sort. If
many pairs have the same distance, each distance can be looked up once and then expanded by `unfold`.
""",
    detected=f"""
A table is looked up (`aten::embedding`) with at least {LEAST_EACH:g} indices for each row, at least {FEWEST_LOOKUPS}
times with the same sizes in a forward pass, and twice as often as any other table. At most half as many gradients of
the table's size are accumulated, which means that layers share it. The lookups take at least
{percent(LEAST_LOOKUPS_SHARE)} % of the step. Not detected without shapes.
""",
    gain=f"""
All but the first lookup of each forward pass are removed with their backward passes; {percent(STAYING_SHARE[1])} % of
that time stays, {percent(STAYING_SHARE[0])} % to {percent(STAYING_SHARE[2])} % (sums of gradients; assumed).
""",
    wrong=f"""
Ops are recorded without their tensors: layers whose indices differ (windows of other positions) cannot share a lookup.
The probability is {percent(calibrated.SEPARATE.value)} % (assumed).
""",
)


@dataclass(frozen=True, slots=True)
class SharedTableLookups:
    """Lookups of shared tables with their backward passes; columns by lookup."""

    forward: Stretches
    backward: Stretches
    times: int
    rows: int
    indices: int


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes one lookup per forward pass."""
    found = find_lookups(case)
    if found is None:
        return
    graph = case.graph
    nodes = (nodes_in(graph, found.forward) >= 0) | (nodes_in(graph, found.backward) >= 0)
    nodes &= ~graph.waits
    ns = case.per_step(float(graph.duration_ns[nodes & graph.on_gpu].sum()))
    host = case.per_step(float(graph.duration_ns[nodes & ~graph.on_gpu].sum()))
    if max(ns, host) < LEAST_LOOKUPS_SHARE * case.step_ns:
        return
    text = (
        f"a table of {found.rows:,} rows is looked up {found.times} times {case.unit.a} for {found.indices:,} indices:"
        f" {duration(ns)} of GPU time more than once, sorts of the indices in the backward pass included"
    )
    low, usual, high = (partial(_less, nodes=nodes, left=left) for left in STAYING_SHARE)
    yield Proposal(
        title="a shared table looked up once per forward pass",
        evidence=spans(case, text, nodes),
        fix=code("bias = self.position_bias(length)  # once, before the layers\n")
        + code("for layer in self.layers:\n    x = layer(x, bias)"),
        change=usual,
        best=low,
        worst=high,
        odds=calibrated.SEPARATE.value,
        needs="the layers look up the same indices",
    )


def find_lookups(case: Analysis) -> SharedTableLookups | None:
    """All but the first lookup of each set of the same sizes in a step; None without any."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    rows = case.ops_named(lambda name: name == "aten::embedding") & (ops.kind == OP) & (ops.start_ns >= low)
    rows &= (ops.start_ns < high) & (ops.sequence >= 0) & (case.timeline.host.op == FORWARD)
    step = np.searchsorted(case.timeline.steps.start_ns, ops.start_ns, side="right")
    passes = np.searchsorted(np.sort(case.timeline.host.backward.end), ops.start_ns)
    groups: dict[tuple[int, tuple[int, int, int]], list[int]] = defaultdict(list)
    for row in np.flatnonzero(rows).tolist():
        groups[int(ops.dims[row]), (int(step[row]), int(passes[row]), int(ops.thread[row]))].append(row)
    turns = Counter(dims for dims, _ in groups)
    together: dict[tuple[int, int, int], Counter[int]] = defaultdict(Counter)
    for (dims, where), mine in groups.items():
        together[where][dims] = len(mine)
    largest = {where: counts.most_common(2) for where, counts in together.items()}
    sums: dict[tuple[int, ...], int] = {}
    again: list[int] = []
    most, table, indices = 0, 0, 0
    for (dims, where), mine in groups.items():
        shapes = shapes_in(case, dims)[:2]
        # A model that is called repeatedly looks up all of its tables equally often.
        others = max((times for one, times in largest[where] if one != dims), default=0)
        if len(mine) < max(FEWEST_LOOKUPS, 2 * others) or len(shapes) < 2 or not shapes[0] or not shapes[1]:
            continue
        count = math.prod(shapes[1])
        if count < LEAST_EACH * shapes[0][0]:
            continue
        if shapes[0] not in sums:
            sums[shapes[0]] = _sums(case, shapes[0])
        if 2 * sums[shapes[0]] > len(mine) * turns[dims]:
            continue
        again += sorted(mine, key=lambda row: int(ops.start_ns[row]))[1:]
        if len(mine) * count > most * indices:
            most, table, indices = len(mine), shapes[0][0], count
    if not again:
        return None
    forward = Stretches.of(ops, np.array(again, np.int64))
    backward = backward_of(case, forward)
    if not (backward.end_ns > backward.start_ns).any():
        return None
    return SharedTableLookups(forward, backward, most, table, indices)


def _sums(case: Analysis, shape: tuple[int, ...]) -> int:
    """Gradients of this shape that are accumulated in the window; more than any lookups where none are recorded."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    sums = case.ops_named(lambda name: name == _ACCUMULATED) & (ops.start_ns >= low) & (ops.start_ns < high)
    if not case.ops_named(lambda name: name == ACCUMULATE).any():
        return len(ops)
    return sum(shapes_in(case, int(dims))[:1] == [shape] for dims in ops.dims[sums].tolist())


def _less(graph: Graph, nodes: Mask, left: float) -> Graph:
    return scaled(removed(graph, nodes & ~graph.on_gpu), nodes & graph.on_gpu, left)


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "the same lookup of a small table in every layer", "layers share the table, and its indices", stage="repeated"
    ),
    synonyms=("position_bias", "relative_position_bias", "relative_attention_bias", "embedding_dense_backward"),
    titles=("a_shared_table_looked_up_once_per_forward_pass",),
)
