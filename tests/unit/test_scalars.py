"""The flat numbers for trackers and the history, from a diagnosis's JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import make_diagnosis as made
from helpers.make_run import usual_run

import gpuprof
from gpuprof.diagnosis.written.diagnosis_json import to_json
from gpuprof.record.entry.scalars import in_words, scalars


def test_a_run_gives_all_that_is_known_of_it(tmp_path: Path):
    diagnosis = gpuprof.diagnose(usual_run().write(tmp_path / "run"))
    found = scalars(to_json(diagnosis))
    assert diagnosis.budget is not None and diagnosis.run is not None and diagnosis.devices_estimated
    assert found["gpuprof/mean_step_ms"] == pytest.approx(diagnosis.budget.mean_ns / 1e6)
    assert found["gpuprof/usual_step_ms"] == pytest.approx(diagnosis.budget.usual_ns / 1e6)
    (device,) = diagnosis.devices_estimated
    usual = diagnosis.budget.usual_in_mean_ns / diagnosis.budget.mean_ns
    assert found["gpuprof/gpu_busy"] == pytest.approx(usual * (1 - device.idle_ns / device.step_ns))
    assert found["gpuprof/exposed_communication"] == 0
    assert 0 <= found["gpuprof/input_wait"] < 1
    assert found["gpuprof/tokens_per_s"] == diagnosis.run.throughput.tokens_per_s


def test_shares_are_means_over_devices():
    device = {"step_ns": 100, "idle_ns": 50, "communication_ns": 10, "idle_by_cause": [{"cause": "input", "ns": 30}]}
    other = {"step_ns": 100, "idle_ns": 0, "communication_ns": 30, "idle_by_cause": []}
    found = scalars({"devices_estimated": [device, other], "budget": None, "steps": None})
    assert found == {
        "gpuprof/gpu_busy": 0.75, "gpuprof/exposed_communication": 0.2, "gpuprof/input_wait": 0.15,
    }  # fmt: skip


def test_what_the_mean_step_has_in_excess_is_idle_time():
    device = {"step_ns": 100, "idle_ns": 50, "communication_ns": 0, "idle_by_cause": []}
    excess = [
        {"cause": "input", "mean_ns": 60},
        {"cause": "save", "mean_ns": 40},
        {"cause": "logging", "mean_ns": None},
    ]
    budget = {"source": "free", "mean_ns": 200, "usual_ns": 100, "excess": excess}
    found = scalars({"devices_estimated": [device], "budget": budget})
    assert (found["gpuprof/gpu_busy"], found["gpuprof/input_wait"]) == (0.25, 0.3)


def test_the_gpu_is_not_busy_in_pauses_and_not_known_to_be_in_variation():
    device = {"step_ns": 200, "idle_ns": 100, "communication_ns": 0, "idle_by_cause": []}
    budget = {"source": "free", "mean_ns": 200, "usual_ns": 100, "excess": [], "residual_ns": 100, "paused_ns": 70}
    assert scalars({"devices_estimated": [device], "budget": budget})["gpuprof/gpu_busy"] == 0.25
    shorter = budget | {"mean_ns": 80, "residual_ns": -20, "paused_ns": 0}
    assert scalars({"devices_estimated": [device], "budget": shorter})["gpuprof/gpu_busy"] == 0.5


@pytest.mark.parametrize("make", [made.timed, made.no_steps, made.unusable, made.empty])
def test_what_is_not_known_is_left_out(make):
    assert all(isinstance(value, float) for value in scalars(to_json(make())).values())


def test_trackers_get_the_first_fix_and_what_is_worth_trying():
    one = {"title": "torch.compile", "speedup": {"low": 0.9, "expected": 1.2, "high": 1.5}}
    document = {"verdict": {"summary": "The GPU waits."}, "findings": [], "worth_trying": [one, one]}
    assert in_words(document) == "The GPU waits. Worth trying: torch.compile (0.90 to 1.50×)."
    assert in_words({"verdict": {"summary": "The GPU waits."}}) == "The GPU waits."
    document["verdict"]["headline"] = "WAITING FOR BATCHES 40 %"
    assert in_words(document).startswith("WAITING FOR BATCHES 40 %. The GPU waits. ")
