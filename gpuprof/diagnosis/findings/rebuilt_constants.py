"""Masks, positions and tables are made again in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from gpuprof.calibration import loops as calibrated
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.repeated.rebuilt_constants import find_rebuilt_constants
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.stretches import nodes_in
from gpuprof.replay.transform import removed, scaled, without_waits
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Convention, Ops, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.replay.graph import Graph

LEAST_REBUILT_SHARE: Assumed[Share] = 0.02
"""Share of the step from which on they are worth a look."""
MOST_NAMED: Convention[Ops] = 4
"""Ops that are named."""
STAYING_SHARE: Assumed[Share] = 0.4
"""Of the time of those that go, what stays at worst."""

PAGE = Page(
    id="rebuilt_constants",
    title="Masks or tables are made again in every layer",
    means="""
A causal mask, positions, or the sines and cosines of a rotary embedding depend only on the length of a batch, and are
the same in each layer. Where each layer builds its own, each costs a dozen launches, or writes and reads a whole
mask. Built once and passed on, or kept in a buffer of the model, they cost nothing.
""",
    detected="""
Sequences of 3 to 32 forward ops that begin with one that creates a tensor (`arange`, `ones`, `full`, `zeros`, `eye`,
`linspace`), read no tensor of a shape that layers compute with, and occur with the same names and shapes at least 4
times a step; at least 2 % of the step. Not detected without shapes.
""",
    gain="""
All but the first of each step are removed, with the Python between their ops; at worst 40 % of that stays (assumed).
""",
    wrong="""
Ops are recorded without their tensors: a table that is made of values of its layer (a learned base, a random mask)
looks the same. The probability is 85 % (assumed).
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Made once in a step."""
    found = find_rebuilt_constants(case)
    if found is None:
        return
    graph = case.graph
    nodes = nodes_in(graph, found.again) >= 0
    gpu = nodes & graph.on_gpu
    took = max(case.per_step(float(graph.duration_ns[one & ~graph.waits].sum())) for one in (gpu, nodes & ~gpu))
    if took < LEAST_REBUILT_SHARE * case.step_ns:
        return
    names = [name.removeprefix("aten::") for name in found.ops]
    text = (
        f"{', '.join(names[:MOST_NAMED])}{' …' if len(names) > MOST_NAMED else ''}: made {found.times:,} times"
        f" {case.unit.a} with the same sizes, {case.per_step(gpu.sum()):,.0f} kernels and {duration(took)} more than"
        " once"
    )
    yield Proposal(
        title="masks and tables made once",
        evidence=spans(case, text, nodes & ~graph.waits),
        fix=code('self.register_buffer("table", table, persistent=False)')
        + "  # or made before the layers, and passed to each",
        change=partial(_without, nodes=nodes),
        worst=partial(_less, nodes=nodes),
        odds=calibrated.SEPARATE.value,
        needs="they depend on sizes alone",
    )


def _without(graph: Graph, nodes: Mask) -> Graph:
    return removed(without_waits(graph, nodes & graph.waits), nodes & ~graph.waits)


def _less(graph: Graph, nodes: Mask) -> Graph:
    return scaled(without_waits(graph, nodes & graph.waits), nodes & ~graph.waits, STAYING_SHARE)


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem("masks or tables that are made again", "they depend on sizes alone, and are the same each time"),
    synonyms=("causal_mask", "position_ids", "rotary_table", "register_buffer"),
    titles=("masks_and_tables_made_once",),
)
