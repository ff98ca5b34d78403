"""How the ledger of what lies above a step's reach shows what a finding's change takes away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stage = Literal["stalled", "replaced", "faster"]
"""stalled: nothing else is done meanwhile. replaced: others compute the same in fewer kernels, or without what is
thrown away. faster: what is left of the work is done in fewer passes over memory, or on tensor cores."""


@dataclass(frozen=True, slots=True)
class LedgerItem:
    """An item of the ledger, of the first proposal that leaves the training as it is."""

    what: str
    """What takes the time."""
    why: str = "a sequence of ops runs where one kernel does the same"
    stage: Stage = "replaced"
    """Where in the ledger's order it stands."""
    unadvised: bool = False
    """Whether it counts without being advised, too: what is computed in vain is known."""
    changes_digits: bool = False
    """Whether it may change the training by digits that 16-bit trainings do not have, and by nothing else."""
