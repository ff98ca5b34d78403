"""What must hold for every split of a step into what lies above its reach."""

from __future__ import annotations

from gpuprof.diagnosis.result.above_reach import AboveReach


def identity_holds(found: AboveReach) -> bool:
    """Whether the usual step is the sum of its parts."""
    return found.usual_ns == found.reach_ns + sum(item.ns for item in found.items) + found.residual_ns
