"""The step that a summary describes: the headline's, or another one that it names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import patterns
from helpers.make_diagnosis import kernels

import gpuprof
from benchmarks.invariants import broken
from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.recorded.shares import Shares
from gpuprof.diagnosis.verdict.verdict_summary import summary
from gpuprof.timeline.unit import ITERATION

MS = 1_000_000


def timed(mean_ms: int, usual_ms: int) -> Budget:
    mean, usual = mean_ms * MS, usual_ms * MS
    return Budget(mean, mean, mean, usual, (), (), mean - usual, 10, "free")


@pytest.mark.parametrize(
    ("budget", "begins"),
    [
        (None, "The GPU works 20 % of the step. "),
        (timed(100, 100), "The GPU works 20 % of the step. "),
        (timed(120, 100), "The GPU works 20 % of the usual step. "),
    ],
)
def test_a_summary_names_a_step_that_is_not_the_headlines(budget: Budget | None, begins: str):
    shares = Shares(0, 100 * MS, 20 * MS, 0, 0, {"launch": 80 * MS})

    def said(**given: Any) -> str:
        return " ".join(summary(shares, kernels(), **given))

    assert said(budget=budget).startswith(begins)
    assert said(budget=budget, unit=ITERATION).startswith(begins.replace("step", "iteration"))


def test_waits_for_the_cpu_count_together_as_in_the_headline():
    """Batches are the largest single cause; launches and Python together are a longer wait for the CPU."""
    shares = Shares(
        0, 100 * MS, 10 * MS, 0, 0, {"input": 34 * MS, "launch": 24 * MS, "python": 18 * MS, "device": 14 * MS}
    )
    said = " ".join(summary(shares, kernels()))
    assert "The largest part of the rest, 42 ms of 90 ms, is waiting for the CPU (host), which launches" in said
    shares = replace(shares, idle_ns={**shares.idle_ns, "input": 43 * MS})
    assert "43 ms of 99 ms, is waiting for the next batch" in " ".join(summary(shares, kernels()))


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("9 ms a step. The GPU works 20 % of the step.", "states a step time"),
        ("The GPU works 99 % of the ", "no bar's"),
    ],
)
def test_another_step_time_breaks_an_invariant(said: str, wrong: str, tmp_path: Path):
    found = gpuprof.diagnose(patterns.small_batch().write(tmp_path / "trace.json"))
    assert not broken(found)
    verdict = replace(found.verdict, sentences=(said,))
    assert any(wrong in what for what in broken(replace(found, verdict=verdict)))
