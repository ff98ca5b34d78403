"""Input workers that end and start again with every epoch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.case import run_of, with_facts
from helpers.eager_program import eager
from helpers.make_run import LOADER, MS, RunBuilder
from helpers.present import present

from gpuprof.diagnosis.findings import worker_restarts
from gpuprof.diagnosis.fixes.predicted_step import predict
from gpuprof.diagnosis.mean_step.budget_model import Budget, Excess
from gpuprof.diagnosis.run.run_facts import RunFacts, run_facts
from gpuprof.replay.mean_step import MeanStep
from gpuprof.tracefile.run_folder.run import read_run

LENGTH, USUAL_MS, WAIT_MS, MORE_MS = 6, 10.0, 40.0, 60.0


def facts(folder, starved: int | None = None, waits: bool = True, evaluates_ms: float = 0.0, **loader) -> RunFacts:
    """Epochs of 6 steps, the first of which takes 60 ms more: 40 of them waiting, the rest ending old workers.

    starved: each step whose number it divides waits like that, too.
    evaluates_ms: what an evaluation in the first steps takes.
    """
    run = RunBuilder()
    run.rank["loader"] = LOADER | {"num_workers": 4, "persistent_workers": False, "length": LENGTH} | loader
    run.stage("baseline_free", [USUAL_MS] * 40, new_shapes=0).stage("baseline_sync", [USUAL_MS] * 10, new_shapes=0)
    for step in run.steps:
        if step["step"] % LENGTH == 2 or (starved and step["step"] % starved == 0):
            step |= {"ns": step["ns"] + round(MORE_MS * MS), "data_ns": round(WAIT_MS * MS) if waits else MS}
            step["ns"] += round(evaluates_ms * MS)
            step |= {"device_ns": step["ns"], "evaluation_ns": round(evaluates_ms * MS)}
    return run_facts(read_run(run.write(folder, None)))


def starts_of(found: RunFacts) -> list[tuple[int | None, int | None]]:
    excess = present(found.budget).excess
    return [(one.mean_ns, one.every) for one in excess if one.cause == "worker_starts"]


def test_the_steps_that_start_an_epoch(tmp_path):
    """60 ms every 6 steps are 10 ms in the mean step, and no reason for more workers."""
    found = facts(tmp_path)
    assert starts_of(found) == [(10 * MS, LENGTH)]
    assert sum(one.mean_ns or 0 for one in present(found.budget).excess if one.cause == "input") == 0
    assert found.feed is None


def test_an_evaluation_at_the_end_of_an_epoch_counts_apart(tmp_path):
    """The evaluation takes 90 ms more in the step that starts the next epoch."""
    found = facts(tmp_path, evaluates_ms=90.0)
    assert starts_of(found) == [(10 * MS, LENGTH)]
    evaluation = next(one for one in present(found.budget).excess if one.cause == "evaluation")
    # 7 of 40 steps.
    assert evaluation.mean_ns == pytest.approx(90 * MS * 7 / 40, rel=1e-6)


@pytest.mark.parametrize(
    "other",
    [
        {"persistent_workers": True},
        {"num_workers": 0},
        {"length": None},
        {"length": LENGTH + 1},
        {"waits": False},
        {"starved": 3},
    ],
)
def test_other_waits_are_none(tmp_path, other):
    """Kept workers, no workers, an epoch that is unknown or has another length, no wait, and waits within an epoch
    too."""
    assert not starts_of(facts(tmp_path, **other))


def test_keeping_them_gains_what_they_cost(tmp_path):
    """100 of 200 ms are starts; the first batch, 20 ms every 10 steps, is still waited for."""
    excess = (Excess("worker_starts", 100 * MS, 4, 10),)
    budget = Budget(200 * MS, 190 * MS, 210 * MS, 100 * MS, excess, (), 0, 40, "free")
    case = eager(tmp_path, steps=3)
    mean = MeanStep(case.graph, usual_ns=100 * MS, mean_ns=200 * MS, lumps_ns={"worker_starts": 100 * MS})
    loader = {"num_workers": 8, "persistent_workers": False, "made": {"batch_ns": 20 * MS}}
    case = with_facts(case, run=replace(run_of(), loader=loader), budget=budget, mean=mean)
    (proposal,) = worker_restarts.find(case)
    assert predict(case, proposal).expected == pytest.approx(102 * MS)
    assert "8 workers end and start again with every epoch of 10 steps: 1.0 s each time" in proposal.evidence[0].text
    assert str(proposal.fix).startswith("DataLoader(..., persistent_workers=True)  # one loader for all epochs")
    assert proposal.fix.patch is not None and (proposal.fix.patch.name, proposal.fix.patch.value) == (
        "input_workers",
        "8",
    )
