"""A change found between two recordings, and the cells of the waterfall that it claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuprof.units import Convention, Weight

if TYPE_CHECKING:
    from gpuprof.diagnosis.detect.pair.cells import Cell
    from gpuprof.diagnosis.detect.pair.facts import Facts

Claim = Callable[["Cell"], float]
"""Weight with which a candidate claims a cell, relative to others that also claim it; 0: not at all."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible explanation of a part of the difference."""

    id: str
    """Id of the finding, if there is one of that kind."""
    title: str
    text: str
    """The quantities that changed."""
    claim: Claim
    more: int = 0
    """1 if B does more of something that costs time, −1 if it does less, 0 if the change does not say."""


Recogniser = Callable[["Facts", "Facts"], Iterator[Candidate]]
"""`change(a, b)` of a file in findings/: the candidate for recordings A and B; none if they do not differ."""

PASSES = ("forward", "backward")
MODEL = (*PASSES, "recompute")
HOST_CAUSES = ("launch", "cpu_compute", "slow_call", "python", "sync", "device", "profiler", "unknown")
"""Causes of idle time that fewer launches shorten: CPU time, and pauses between kernels."""

OWN_WEIGHT: Convention[Weight] = 1e6
"""Weight of a claim on cells that nothing else explains: larger than any number of launches."""
WEAK_WEIGHT: Convention[Weight] = 1e-3
WEAKER_WEIGHT: Convention[Weight] = 1e-6
"""Weights of claims that only count if there is nothing better."""


def is_model_wait(cell: Cell) -> bool:
    """Whether in this cell the GPU waits for the CPU to launch the model's passes."""
    return cell[0] == "idle" and cell[1] in HOST_CAUSES and cell[2] in MODEL


def is_communication(cell: Cell) -> bool:
    return "communication" in cell[1:]


def is_copying(cell: Cell) -> bool:
    """Whether a cell is copies, or waiting for them."""
    return cell[:2] in (("idle", "transfer"), ("busy", "memcpy"))


def claim_where(holds: Callable[[Cell], bool], weight: float = 1.0) -> Claim:
    """A claim with the same weight on all cells for which something holds."""
    return lambda cell: weight if holds(cell) else 0.0


def claim_busy(weight: float) -> Claim:
    """A claim on all GPU work."""
    return claim_where(lambda cell: cell[0] == "busy", weight)


def claim_idle(*causes: str, weight: float = 1.0) -> Claim:
    """A claim on all waits with these causes."""
    return claim_where(lambda cell: cell[0] == "idle" and cell[1] in causes, weight)


def claim_model(categories: tuple[str, ...], waits: float) -> Claim:
    """A claim on work of these categories in the model's passes, and with weight `waits` on the GPU's waiting there."""

    def claim(cell: Cell) -> float:
        if is_model_wait(cell):
            return waits
        return 1.0 if cell[0] == "busy" and cell[2] in MODEL and cell[1] in categories else 0.0

    return claim
