"""A change that was seen between two recordings, and the cells of the waterfall that it claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuprof.units import Convention, Weight

if TYPE_CHECKING:
    from gpuprof.diagnosis.detect.pair.cells import Cell
    from gpuprof.diagnosis.detect.pair.facts import Facts

Claim = Callable[["Cell"], float]
"""Weight with which a candidate claims a cell against others that act there too; 0: not at all."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What may account for a part of the difference."""

    id: str
    """Of a finding, where there is one of that kind."""
    title: str
    text: str
    """The quantities that moved."""
    claim: Claim
    more: int = 0
    """1 where B does more of what costs time, −1 where it does less; 0 where the change says nothing of that."""


Recogniser = Callable[["Facts", "Facts"], Iterator[Candidate]]
"""`change(a, b)` of a file in findings/: the candidate that recordings A and B show, none where they do not differ."""

PASSES = ("forward", "backward")
MODEL = (*PASSES, "recompute")
HOST_CAUSES = ("launch", "cpu_compute", "slow_call", "python", "sync", "device", "profiler", "unknown")
"""Idle time that fewer launches shorten: the host's, and the pauses between kernels."""

OWN_WEIGHT: Convention[Weight] = 1e6
"""Weight of a claim to cells that nothing else explains: more than any number of launches."""
WEAK_WEIGHT: Convention[Weight] = 1e-3
WEAKER_WEIGHT: Convention[Weight] = 1e-6
"""Weights of claims that hold only where nothing better is known."""


def is_model_wait(cell: Cell) -> bool:
    """Whether the GPU waits there for the host that launches the model's passes."""
    return cell[0] == "idle" and cell[1] in HOST_CAUSES and cell[2] in MODEL


def is_communication(cell: Cell) -> bool:
    return "communication" in cell[1:]


def is_copying(cell: Cell) -> bool:
    """Copies, and what the GPU waits for them."""
    return cell[:2] in (("idle", "transfer"), ("busy", "memcpy"))


def claim_where(holds: Callable[[Cell], bool], weight: float = 1.0) -> Claim:
    """The same weight wherever something holds."""
    return lambda cell: weight if holds(cell) else 0.0


def claim_busy(weight: float) -> Claim:
    """All work of the GPU."""
    return claim_where(lambda cell: cell[0] == "busy", weight)


def claim_idle(*causes: str, weight: float = 1.0) -> Claim:
    """All waits for some causes."""
    return claim_where(lambda cell: cell[0] == "idle" and cell[1] in causes, weight)


def claim_model(categories: tuple[str, ...], waits: float) -> Claim:
    """Work of some categories in the model's passes, and with the weight `waits` what the GPU waits there."""

    def claim(cell: Cell) -> float:
        if is_model_wait(cell):
            return waits
        return 1.0 if cell[0] == "busy" and cell[2] in MODEL and cell[1] in categories else 0.0

    return claim
