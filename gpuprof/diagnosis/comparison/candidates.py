"""A change that was seen between two recordings."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis.comparison.claims import Claim


@dataclass(frozen=True, slots=True)
class Candidate:
    """What may account for a part of the difference."""

    id: str
    """Of a finding, where there is one of that kind."""
    title: str
    text: str
    """The quantities that moved."""
    claim: Claim
    more: int = 0
    """1 where B does more of what costs time, −1 where it does less; 0 where the change says nothing of that."""
