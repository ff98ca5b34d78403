"""A cost that a step may do without, as the ledger of costs above its reach takes it: nodes of the graph, and a change
that removes their excess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpuprof.diagnosis.result.above_reach import Kind
from gpuprof.replay.graph import Graph
from gpuprof.tracefile.trace import Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Change

Cost = Literal[
    "batches", "planning", "loading_code", "compiling", "allocating", "computing_on_cpu", "waiting_for_gpu",
    "blocking_copies", "long_python", "later_ranks", "launching",
    "slow_matmuls", "slow_attention", "slow_optimizer", "slow_copies", "slow_kernels",
]  # fmt: skip
"""Costs that the ledger finds by itself; a finding declares those that its fixes remove or lower. The last row is of
kernels that take longer than usual for their kind and size."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The innermost function that most samples of a place have in their stack."""

    function: str
    file: str
    line: int
    """The line with most of these samples."""
    share: float
    """Share of the place's samples with the function."""
    parts: tuple[tuple[str, float], ...] = ()
    """For a loop that is in the stack of the whole step: the functions that it calls here, largest share first."""


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """Something that the step may do without."""

    kind: Kind
    what: str
    nodes: Mask
    """Its nodes in the graph, which give its size and place."""
    change: Change
    """Returns the graph with these nodes at their reach."""
    reach: float | None = 0.0
    """Share of the nodes' own time that remains at their reach; None if no rate is known."""
    why: str | None = None
    useful: float | None = None
    """Share of the nodes' FLOPs that the training needs: less than 1 where they compute again, or what nothing uses.
    None where all of them are needed, only slower than they could be."""
    cost: Cost | None = None
    """What kind of cost it is, for which findings declare that they lower it; None for a finding's own part."""
    finding: str | None = None
    """Id of the finding that declares this part; filled in by the ledger."""
    sampled: Sampled | None = None
    """The function that runs there, from samples of unprofiled steps."""


def part_of(graph: Graph, change: Change, what: str, why: str | None, kind: Kind | None = None) -> LedgerPart:
    """The nodes that a change makes shorter, as a part. Without a kind, it is the kind of the side, GPU or CPU, with
    most of their time."""
    nodes, left = shorter(graph, change)
    own, on_gpu = (float(graph.duration_ns[mask].sum()) for mask in (nodes, nodes & graph.on_gpu))
    side: Kind = "gpu" if 2 * on_gpu > own else "host"
    return LedgerPart(kind or side, what=what, nodes=nodes, change=change, reach=left, why=why)


def shorter(graph: Graph, change: Change) -> tuple[Mask, float]:
    """(the nodes that a change makes shorter, the share of their time that remains)."""
    after = change(graph)
    nodes = after.duration_ns < graph.duration_ns
    own = float(graph.duration_ns[nodes].sum())
    return nodes, float(after.duration_ns[nodes].sum()) / own if own else 0.0
