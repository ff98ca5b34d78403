"""The work that a slow rank does in addition to the others'."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprof.units import Assumed, Convention, Entries, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.detect.ranks.gang import Gang, RankExcess

MOST_KINDS: Convention[Entries] = 3
"""Most kinds of additional work that are named; each is at least the share below of all of it."""
LEAST_KIND_SHARE: Assumed[Share] = 0.05


def most_of_excess(gang: Gang) -> tuple[RankExcess, ...]:
    """The kinds of work that make up most of the slow rank's excess."""
    total = sum(one.ns for one in gang.excess)
    return tuple(one for one in gang.excess[:MOST_KINDS] if one.ns >= LEAST_KIND_SHARE * total)
