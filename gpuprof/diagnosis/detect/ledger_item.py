"""How the ledger of costs above a step's reach shows what a finding's change removes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stage = Literal["stalled", "replaced", "faster"]
"""stalled: nothing else happens meanwhile. replaced: other ops compute the same result in fewer kernels, or without
discarded work. faster: the remaining work is done in fewer passes over memory, or on tensor cores."""


@dataclass(frozen=True, slots=True)
class LedgerItem:
    """A ledger item, for a finding's first proposal that leaves the training unchanged."""

    what: str
    """What takes the time."""
    why: str = "a sequence of ops runs where one kernel does the same"
    stage: Stage = "replaced"
    """Its place in the ledger's order."""
    unadvised: bool = False
    """Whether it counts even if it is not advised: its wasted work is known."""
    changes_digits: bool = False
    """Whether it may change digits that 16-bit training does not have anyway, and nothing else."""
