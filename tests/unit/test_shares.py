"""Shares of a step that replace sensitivities where a recording cannot be replayed."""

from __future__ import annotations

import pytest

from gpuprof.diagnosis.mean_step.budget_model import Budget, Excess
from gpuprof.diagnosis.recorded.shares import Shares, with_excess
from gpuprof.diagnosis.verdict.share_verdict import bound_of_shares

MS = 1_000_000
PARTS = {"memory": 1.0}


@pytest.mark.parametrize(
    ("cause", "idle", "bound"),
    [("input", "input", "input"), ("save", "python", "host"), ("allocator", "allocator", "host")],
)
def test_what_only_some_steps_do_can_bind_the_mean_step(cause: str, idle: str, bound: str):
    """The GPU works 64 of 68 ms in a usual step, but the mean step takes 213."""
    usual = Shares(0, 68 * MS, 62 * MS, 0, 2 * MS, {"python": 3 * MS, "device": 1 * MS})
    excess = Excess(cause, 145 * MS, 3)
    budget = Budget(213 * MS, 200 * MS, 220 * MS, 68 * MS, (excess,), (), 0, 30, "free")
    mean = with_excess(usual, budget)
    assert mean.step_ns == budget.mean_ns and mean.busy_ns == usual.busy_ns
    assert mean.busy_ns + sum(mean.idle_ns.values()) == mean.step_ns
    assert mean.idle_ns[idle] == usual.idle_ns.get(idle, 0) + 145 * MS
    assert (bound_of_shares(usual, PARTS), bound_of_shares(mean, PARTS)) == ("memory", bound)
