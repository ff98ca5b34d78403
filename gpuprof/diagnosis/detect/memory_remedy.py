"""What a finding knows of a change that saves memory: what it does to the footprint, and to the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuprof.diagnosis.detect.proposal import Proposal
from gpuprof.projection.memory_fixes import MemoryFix

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.projection.memory import RecordedMemory

Offers = Callable[["RecordedMemory", "float | None"], Iterable[MemoryFix]]
"""`offers(memory, mean tokens of a pass)`: the changes that have something to act on in a recording."""


@dataclass(frozen=True, slots=True)
class Priced:
    """What one change does to a step."""

    proposals: tuple[Proposal, ...] = ()
    """Replayed."""
    more_ns: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Not replayed: at least, usually, at most."""


Price = Callable[[MemoryFix, "Analysis", "RecordedMemory"], "Priced | str"]
"""What a change does to the step, or why that is not known."""


@dataclass(frozen=True, slots=True)
class MemoryRemedy:
    """Changes that one finding offers to save memory."""

    ids: tuple[str, ...]
    """Of what it may offer."""
    offers: Offers
    price: Price | None = None
    """None: that of the finding's first fix."""
