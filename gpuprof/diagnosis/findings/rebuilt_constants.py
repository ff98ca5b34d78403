"""Masks, positions and tables are made again in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from gpuprof.calibration import loops as calibrated
from gpuprof.calibration import slow as slow_calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.repeated.copied_tables import find_copied_tables
from gpuprof.diagnosis.detect.repeated.rebuilt_constants import find_rebuilt_constants
from gpuprof.diagnosis.detect.repeated.rebuilt_untrained import find_untrained
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.stretches import nodes_in
from gpuprof.replay.transform import removed, scaled, without_waits
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Convention, Entries, Ops, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.replay.graph import Graph

LEAST_REBUILT_SHARE: Assumed[Share] = 0.02
"""Smallest share of the step in repeated constants for a proposal."""
MOST_SIZES: Convention[Entries] = 3
"""Most sizes that are named."""
MOST_NAMED: Convention[Ops] = 4
"""Most ops that are named."""
STAYING_SHARE: Assumed[Share] = 0.4
"""Share of the removed work's time that stays at worst."""

PAGE = Page(
    id="rebuilt_constants",
    title="Masks or tables are made again in every layer",
    means="""
A causal mask, positions, or the sines and cosines of a rotary embedding depend only on the length of a batch, and are
the same in each layer. So is what is computed of tensors without gradients, such as the normalised adjacency matrix or
the edge weights of a graph, or a bias from distances. Where each layer builds its own, each costs a dozen launches, or
writes and reads a whole mask. Built once and passed on, or kept in a buffer of the model, they cost nothing. The same
holds for what NumPy or torch computes on the CPU at each call and copies to the GPU (mel filters, windows, tables of
positions): computing takes milliseconds, and each copy from pageable memory makes the CPU wait. A cache that never hits
looks the same as no cache.
""",
    detected=f"""
Sequences of 3 to 32 forward ops (2 with `tril` or `triu`) that begin with one that creates a tensor (`arange`, `ones`,
`full`, `zeros`, `eye`, `linspace`), read no tensor of a shape that layers compute with, and occur with the same names
and shapes at least 4 times a step; at least {percent(LEAST_REBUILT_SHARE)} % of the step. Also sequences of 2 to 32
forward ops that make no node of autograd (they leave its number to the next op) before one that does, whose numbers are
no integers and whose largest tensor has no size that gradients flow through, at least 3 times a step with the same
names and shapes. Not detected without shapes. On the CPU, copies of one size (1 KiB or more) go to the GPU at least
twice before a backward pass, with kernels in between, each after 0.2 ms of CPU work in which nothing is launched, or
after an op that creates a tensor of a size on the CPU. Not counted are stretches with random numbers, calls of a model
for one row after another (`python_loop`), and copies between which a value is read from the GPU, as both may depend on
it.
""",
    gain=f"""
All but the first of each step are removed, with the Python between their ops (at best, of what has no gradients, the
first as well: it may be the same in all steps); at worst {percent(STAYING_SHARE)} % of
that stays (assumed). What the CPU computes and copies is removed as a whole, as it is kept over all steps.
""",
    wrong=f"""
Ops are recorded without their tensors: a table that is computed from values of its layer (a learned base, a random
mask) looks the same. The probability is {percent(calibrated.SEPARATE.value)} % (assumed), and
{percent(slow_calibrated.FUNCTION_ODDS.value)} % for tables that the CPU computes: samples that are prepared just before
each of several calls look the same.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to make them once in a step, or once for all steps if the CPU computes them."""
    yield from _copied(case)
    yield from _untrained(case)
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


def _copied(case: Analysis) -> Iterator[Proposal]:
    """Proposes to keep tables that the CPU computes and copies on the GPU."""
    found = find_copied_tables(case)
    if found is None:
        return
    nodes, graph = found.nodes, case.graph
    took = case.per_step(float(graph.duration_ns[nodes & ~graph.waits].sum()))
    if took < LEAST_REBUILT_SHARE * case.step_ns:
        return
    sizes = ", ".join(f"{size / 1024:,.0f} KiB" for size in found.sizes[:MOST_SIZES])
    text = (
        f"tables of {sizes}{' …' if len(found.sizes) > MOST_SIZES else ''} computed on the CPU and copied to the GPU"
        f" {found.times / case.steps:,.0f} times {case.unit.a}, each size more than once: {duration(took)} of CPU time"
    )
    yield Proposal(
        title="tables kept on the GPU",
        evidence=spans(case, text, nodes & ~graph.waits),
        fix=code('self.register_buffer("table", table, persistent=False)')
        + "  # computed once; or a cache whose key is found again\n"
        + code("torch.linspace(low, high, count, device=x.device)").otherwise()
        + "  # computed where it is used",
        change=partial(_without, nodes=nodes),
        worst=partial(_less, nodes=nodes),
        odds=slow_calibrated.FUNCTION_ODDS.value,
        needs="they depend on sizes alone, and not on samples",
        key="copied",
    )


def _untrained(case: Analysis) -> Iterator[Proposal]:
    """What is computed of tensors without gradients, once in a step; at best once for all steps."""
    found = find_untrained(case)
    if found is None:
        return
    graph = case.graph
    every, nodes = (nodes_in(graph, one) >= 0 for one in (found.every, found.again))
    gpu = nodes & graph.on_gpu
    took = max(case.per_step(float(graph.duration_ns[one & ~graph.waits].sum())) for one in (gpu, nodes & ~gpu))
    if took < LEAST_REBUILT_SHARE * case.step_ns:
        return
    names = [name.removeprefix("aten::") for name in found.ops]
    text = (
        f"{', '.join(names[:MOST_NAMED])}{' …' if len(names) > MOST_NAMED else ''}: computed {found.times:,} times"
        f" {case.unit.a} of tensors of the same sizes that have no gradients, {case.per_step(gpu.sum()):,.0f} kernels"
        f" and {duration(took)} more than once"
    )
    yield Proposal(
        title="what is not trained computed once",
        evidence=spans(case, text, nodes & ~graph.waits),
        fix=code("adjacency = normalised(adjacency)")
        + "  # before the layers, or before the training, not in each layer",
        change=partial(_without, nodes=nodes),
        best=partial(_without, nodes=every),
        worst=partial(_less, nodes=nodes),
        odds=calibrated.SEPARATE.value,
        needs="it is the same each time",
        key="untrained",
    )


def _without(graph: Graph, nodes: Mask) -> Graph:
    return removed(without_waits(graph, nodes & graph.waits), nodes & ~graph.waits)


def _less(graph: Graph, nodes: Mask) -> Graph:
    return scaled(without_waits(graph, nodes & graph.waits), nodes & ~graph.waits, STAYING_SHARE)


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem("masks or tables that are made again", "they depend on sizes alone, and are the same each time"),
    synonyms=(
        "causal_mask",
        "position_ids",
        "rotary_table",
        "register_buffer",
        "mel_filters",
        "window_function",
        "gcn_norm",
        "adjacency",
    ),
    lowers=("long_python", "computing_on_cpu", "blocking_copies"),
    titles=("masks_and_tables_made_once", "tables_kept_on_the_gpu", "what_is_not_trained_computed_once"),
)
