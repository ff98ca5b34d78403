"""The mean step of runs whose steps differ, compared with what was measured without a profiler."""

from __future__ import annotations

import pytest
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT, SHARED
from helpers.present import present

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Finding

MS = 1e6


def wild(name: str) -> Diagnosis:
    """A run of another project's program; the test is skipped where it is not there."""
    path = SHARED / "traces" / "wild" / name
    if not path.is_dir():
        pytest.skip(f"no recorded traces at {path} (set GPUPROF_SHARED)")
    return diagnosed(path)


def exact(diagnosis: Diagnosis) -> None:
    budget = diagnosis.budget
    assert budget is not None
    parts = sum(one.mean_ns or 0 for one in budget.excess)
    assert budget.mean_ns == budget.usual_ns + parts + budget.residual_ns


def finding(diagnosis: Diagnosis, name: str) -> Finding:
    return next(found for found in diagnosis.findings if found.id == name)


def test_a_starved_loader_of_another_project():
    """16 workers reduced 42 ms to 23 (on another host 63 to 29, and 16.5 with pinned memory, too); pinned memory alone
    gained nothing."""
    found = wild("cv")
    exact(found)
    assert found.verdict.bound == "input"
    assert found.step_ns == pytest.approx(50 * MS, rel=0.02), "the mean of the run's own stretch"
    workers, *then = found.findings
    assert workers.id == "input_workers"
    assert all(workers.title in one.parts for one in then), "nothing else gains while batches are missing"
    (both,) = then
    assert "pinned memory" in both.title
    assert both.speedup.low <= 63.4 / 16.5 <= both.speedup.high
    assert workers.title.endswith(" 16")
    measured = (23.3 / 42.3, 29.3 / 63.4)
    shares = [ns / present(found.step_ns) for ns in (workers.step_ns.low, workers.step_ns.high)]
    assert shares[0] <= max(measured) and shares[1] >= min(measured)


@pytest.mark.slow
def test_new_lengths_of_another_project():
    """Padding to multiples of 64 reduced 310 ms to 247, and removing checkpointing to 235."""
    found = wild("reward")
    exact(found)
    assert found.step_ns == pytest.approx(310 * MS, rel=0.10)
    padded, unchecked = finding(found, "planning"), finding(found, "recompute")
    assert padded.step_ns.low <= 246.5 * MS <= padded.step_ns.high
    assert unchecked.step_ns.low <= 234.7 * MS <= unchecked.step_ns.high


def test_starved_workers():
    """4 workers take 93 to 106 ms, 16 take 47 to 55, and pinned memory alone 93 to 117."""
    found = diagnosed(ROOT / "scenarios" / "starved_workers" / "recording")
    exact(found)
    assert found.verdict.bound == "input"
    budget = present(found.budget)
    assert abs(budget.residual_ns) < 0.01 * budget.mean_ns
    (workers,) = found.findings
    assert workers.step_ns.low <= 50.5 * MS and workers.step_ns.high >= 46.5 * MS


def test_periodic_saving():
    """Measured 366 and 393 ms with saving at every fourth step, 145 and 147 at every fortieth."""
    found = diagnosed(ROOT / "scenarios" / "periodic_saving" / "recording")
    exact(found)
    assert (found.verdict.bound, found.verdict.cause) == ("host", "save")
    rarer = finding(found, "rare_steps")
    assert rarer.step_ns.low <= 145 * MS <= rarer.step_ns.high
    budget = present(found.budget)
    assert abs(budget.residual_ns) < 0.01 * budget.mean_ns
