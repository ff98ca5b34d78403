"""What a user asks of a recording."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of a diagnosis, which the command, the API and the tools take alike."""

    step: str | None = None
    """Regular expression on the range that is a step; found out if not given."""
    skip: int = 0
    """Steps to leave out at the start."""
    step_ms: float | None = None
    """A step measured without a profiler, ms; goes before what a run says."""
    top: int = 10
    """Rows in the lists of gaps and kernels."""


NOTHING_ASKED = Asked()
"""As it is."""
