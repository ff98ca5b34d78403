"""A potential whose loss differentiates forces: message passing along edges, and two backward passes a step."""

from __future__ import annotations

from helpers.diagnosed import diagnosed
from helpers.paths import ROOT


def test_nothing_is_advised_that_the_program_does_not_do():
    """It has no experts, no checkpointing and no gradient accumulation; advice about each of these once claimed 1.3 to
    3.0x."""
    diagnosis = diagnosed(ROOT / "scenarios" / "cases" / "host_reads" / "recording")
    shown = {finding.id for finding in (*diagnosis.findings, *diagnosis.worth_trying)}
    assert not shown & {"expert_loop", "recompute", "accumulation"}
