"""What a user asks of a recording."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of a diagnosis: the same for the command, the API and the MCP tools."""

    step: str | None = None
    """Regular expression for the name of the range that is a step; None: detected."""
    skip: int = 0
    """Steps to leave out at the start."""
    step_ms: float | None = None
    """A step measured without a profiler, ms; overrides what a run measured."""
    top: int = 10
    """Rows in the lists of gaps and kernels."""


NOTHING_ASKED = Asked()
"""No options: the defaults."""
