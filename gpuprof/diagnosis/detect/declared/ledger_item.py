"""What a finding adds to the ledger of costs above a step's reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from gpuprof.diagnosis.detect.declared.ledger_part import LedgerPart

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

Stage = Literal["stalled", "moved", "replaced", "repeated", "discarded", "faster"]
"""stalled: nothing else happens meanwhile. moved: data that is copied to another memory and back. replaced: other ops
compute the same result in fewer kernels, or without discarded work. repeated: computed before. discarded: computed for
nothing. faster: the remaining work is done in fewer passes over memory, or on tensor cores."""


@dataclass(frozen=True, slots=True)
class LedgerItem:
    """An item made of what is removed by a finding's first proposal that leaves the training unchanged."""

    what: str
    """What takes the time."""
    why: str = "several ops run where one kernel could do the same work"
    stage: Stage = "replaced"
    """Its place in the ledger's order."""
    unadvised: bool = False
    """Whether it counts even if it is not advised: its wasted work is known."""
    changes_digits: bool = False
    """Whether it counts although the fix changes digits, or its rule: the same training would take about as long."""


@dataclass(frozen=True, slots=True)
class LedgerParts:
    """Items that a finding computes itself, because none of its proposals removes exactly them."""

    parts: Callable[[Analysis], Iterator[LedgerPart]]
    stage: Stage
    """Their place in the ledger's order."""
    unadvised: bool = True
    """Whether they count even if the finding is not advised."""
    useless: bool = False
    """Whether they have FLOPs that the training does not need (`LedgerPart.useful`)."""
    headlines: Mapping[str, str] = field(default_factory=dict)
    """`what` of an item → the headline of a diagnosis whose step it takes most of."""
