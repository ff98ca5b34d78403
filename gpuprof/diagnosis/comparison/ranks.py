"""The ranks of both runs side by side: how long each needs by itself, and how long it waits for the others."""

from __future__ import annotations

from gpuprof.diagnosis.comparison.model import RankDifference
from gpuprof.diagnosis.model import Diagnosis


def rank_differences(a: Diagnosis, b: Diagnosis) -> tuple[RankDifference, ...] | None:
    """Ranks that both runs have, in their order; None where one is not a run of several."""
    if not (a.ranks and b.ranks):
        return None
    after = {one.rank: one for one in b.ranks}
    pairs = [(one, after[one.rank]) for one in a.ranks if one.rank in after]
    return tuple(
        RankDifference(one.rank, one.pace_ns, other.pace_ns, one.waiting_ns, other.waiting_ns) for one, other in pairs
    )
