"""The input of a ledger item: nodes of the graph, and a change that removes their excess."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis.above_reach import Kind
from gpuprof.diagnosis.analysis import Change
from gpuprof.diagnosis.reach.sampled import Sampled
from gpuprof.tracefile.trace import Mask


@dataclass(frozen=True, slots=True)
class Part:
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
    findings: tuple[str, ...] = ()
    """Ids of the findings that would remove it."""
    sampled: Sampled | None = None
    """The function that runs there, from samples of unprofiled steps."""
