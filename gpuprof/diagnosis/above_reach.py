"""The ledger of a step: what it should cost, and what lies above that.

    usual = reach + sum of the items + residual        (exact, in whole nanoseconds)

Plain data; `gpuprof.diagnosis.reach.ledger` computes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuprof.bounds import Signed, Words

Kind = Literal["gpu", "host", "input", "transfer", "communication", "memory"]


@dataclass(frozen=True, slots=True)
class Where:
    """The place that has most of an item, as far as the recording tells."""

    module: str | None
    op: str | None
    function: str | None
    """The function of the user's code that it is launched from, `train.py: step`; only where stacks were recorded."""
    line: int | None


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that the step could do without."""

    kind: Kind
    what: Words
    where: Where
    ns: Signed[int]
    """What the replayed step loses when this goes after the items before it; negative where that makes it longer."""
    own_ns: int
    """What it takes by itself, GPU or CPU time of a step: more than `ns` where something else hides it."""
    reach_ns: int | None
    """What would be left of `own_ns` at its reach; None where no rate was measured or calibrated: then the item is
    listed by its whole size, and counts as unknown."""
    why: str | None
    """What makes it cost more; None where that is not known."""
    finding: str | None
    """Id of the finding that removes it, where one is advised or worth trying."""


@dataclass(frozen=True, slots=True)
class AboveReach:
    """A step in whole ns: `usual_ns` = `reach_ns` + the sum of the items' `ns` + `residual_ns`."""

    usual_ns: int
    """The usual step as it was measured, else as it is replayed."""
    reach_ns: int
    """The replayed step without any of the items."""
    residual_ns: Signed[int]
    """usual_ns less the replayed step: what the replay does not explain."""
    unknown_ns: Signed[int]
    """Sum of the items without a known reach."""
    items: tuple[Item, ...]
    """In the order in which they were taken out of the replayed step, one after the other."""

    @property
    def largest(self) -> tuple[Item, ...]:
        """The items by what the step loses without them."""
        return tuple(sorted(self.items, key=lambda item: -item.ns))
