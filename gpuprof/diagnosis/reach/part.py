"""What an item of the ledger is made from: something in the graph, and the graph without it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis.above_reach import Kind
from gpuprof.diagnosis.analysis import Change
from gpuprof.diagnosis.reach.sampled import Sampled
from gpuprof.tracefile.trace import Mask


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that may go."""

    kind: Kind
    what: str
    nodes: Mask
    """Where it is in the graph: for its size and its place."""
    change: Change
    """The graph with this at its reach."""
    reach: float | None = 0.0
    """Share of the nodes' own time that is left at their reach; None where no rate is known."""
    why: str | None = None
    findings: tuple[str, ...] = ()
    """Ids of the findings that would remove it."""
    sampled: Sampled | None = None
    """The function that runs there, by the samples of unprofiled steps."""
