"""Types with which a finding declares a change that saves memory: its effect on the footprint and on the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuprof.diagnosis.detect.declared.proposal import Proposal
from gpuprof.projection.memory.memory_fixes import MemoryFix

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.projection.memory.recorded_memory import RecordedMemory

Offers = Callable[["RecordedMemory", "float | None"], Iterable[MemoryFix]]
"""`offers(memory, mean tokens of a pass)`: the changes that apply to a recording."""


@dataclass(frozen=True, slots=True)
class Priced:
    """Effect of one change on a step."""

    proposals: tuple[Proposal, ...] = ()
    """Proposals to replay."""
    more_ns: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Time that is added without a replay, ns: low, expected, high."""


Price = Callable[[MemoryFix, "Analysis", "RecordedMemory"], "Priced | str"]
"""The effect of a change on the step, or why it is unknown."""


@dataclass(frozen=True, slots=True)
class MemoryRemedy:
    """Changes that one finding offers to save memory."""

    ids: tuple[str, ...]
    """Ids of the changes that it may offer."""
    offers: Offers
    price: Price | None = None
    """None: the effect is that of the finding's first fix."""
