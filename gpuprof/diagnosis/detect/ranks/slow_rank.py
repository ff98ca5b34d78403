"""What a slow rank does more than the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprof.units import Assumed, Convention, Entries, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.detect.ranks.gang import Excess, Gang

MOST_KINDS: Convention[Entries] = 3
"""Kinds of work that are named; each at least the share below of all that the rank does more."""
LEAST_KIND_SHARE: Assumed[Share] = 0.05


def most_of_excess(gang: Gang) -> tuple[Excess, ...]:
    """The work that makes most of what the slow rank does more."""
    total = sum(one.ns for one in gang.excess)
    return tuple(one for one in gang.excess[:MOST_KINDS] if one.ns >= LEAST_KIND_SHARE * total)
