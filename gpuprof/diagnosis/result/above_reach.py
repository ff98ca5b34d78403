"""The ledger of a step: what it should cost, and what it costs beyond that.

    usual = reach + sum of the items + residual        (exact, in whole nanoseconds)

Plain data; `gpuprof.diagnosis.reach.ledger` computes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuprof.bounds import Signed, Words
from gpuprof.value_range import Range

Kind = Literal["gpu", "host", "input", "transfer", "communication", "memory"]


@dataclass(frozen=True, slots=True)
class Where:
    """The place that has most of an item, as far as the recording shows it."""

    module: str | None
    op: str | None
    function: str | None
    """The function of the user's code that it is launched from, `train.py: step`; only where stacks were recorded."""
    line: int | None
    before: str | None = None
    """The op that follows on the thread, where none contains it and no function is known."""


@dataclass(frozen=True, slots=True)
class Item:
    """One cost that the step could do without."""

    kind: Kind
    what: Words
    where: Where
    ns: Signed[int]
    """How much shorter the replayed step gets when this item is removed after those before it; negative if longer."""
    own_ns: int
    """GPU or CPU time that it takes a step: more than `ns` where other work overlaps with it."""
    reach_ns: int | None
    """What would be left of `own_ns` at the best rate measured; None where no rate was measured or calibrated: then
    the item is listed at its full size and counts as unknown."""
    why: str | None
    """Why it costs more than it should; None if unknown."""
    finding: str | None
    """Id of the finding that removes it, if one is advised or worth trying."""
    gain: Range | None = None
    """How many times as fast the step is with this item at its reach, by the replay, with the 80 % interval by which
    measured gains scatter around replayed ones. None where its removal makes the step no shorter."""


@dataclass(frozen=True, slots=True)
class AboveReach:
    """A step in whole ns: `usual_ns` = `reach_ns` + the sum of the items' `ns` + `residual_ns`."""

    usual_ns: int
    """The usual step as measured, or as replayed if it was not measured."""
    reach_ns: int
    """The replayed step without any of the items."""
    residual_ns: Signed[int]
    """`usual_ns` − the replayed step: what the replay does not explain."""
    unknown_ns: Signed[int]
    """Sum of the items whose reach is unknown."""
    items: tuple[Item, ...]
    """In the order in which they were taken out of the replayed step, one after the other."""

    @property
    def largest(self) -> tuple[Item, ...]:
        """The items, those that shorten the step most first."""
        return tuple(sorted(self.items, key=lambda item: -item.ns))
