"""Quantiles of 80 % intervals. Standard library only: the training process uses them, too."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Convention, Ratio

Z80: Convention[Ratio] = 1.2816
"""90th percentile of the normal distribution: eight of ten lie within this many standard deviations."""


def t80(freedom: float) -> float:
    """The same of Student's t (Cornish-Fisher, two terms); `freedom`: degrees of freedom, at least 1."""
    return Z80 + (Z80**3 + Z80) / (4 * freedom)
