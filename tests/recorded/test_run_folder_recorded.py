"""A recording in a run folder, compared with the run's own baseline."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.make_run import MS, RECORDING, UNPROFILED_MS, usual_run
from helpers.valid_json import is_valid

import gpuprof
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.notebook import diagnosis_html
from gpuprof.report.terminal.terminal import plain


@pytest.fixture(scope="module")
def usual(tmp_path_factory) -> Path:
    return usual_run().write(tmp_path_factory.mktemp("run") / "gpuprof-runs" / "2026-11-21_101500_train")


@pytest.fixture(scope="module")
def diagnosis(usual: Path) -> Diagnosis:
    return is_valid(gpuprof.diagnose(usual))


def test_a_recording_meets_its_own_truth(usual, diagnosis):
    assert diagnosis.source.kind == "run" and diagnosis.source.path == str(usual)
    assert diagnosis.quality.status == "ok"
    assert (diagnosis.verdict.bound, diagnosis.verdict.cause) == ("host", "launch")
    assert diagnosis.steps and diagnosis.devices_estimated and diagnosis.run
    assert diagnosis.steps.unprofiled_ns == UNPROFILED_MS * MS
    assert diagnosis.steps.inflation == pytest.approx(2.32, abs=0.01)
    assert diagnosis.devices_estimated[0].step_ns == UNPROFILED_MS * MS
    by_hand = gpuprof.diagnose(RECORDING, step_ms=UNPROFILED_MS)
    same = ("quality", "steps", "window", "devices", "devices_estimated", "gaps", "kernels", "phases", "verdict")
    for name in same:
        assert getattr(by_hand, name) == getattr(diagnosis, name), name
    by_run = [f.id for f in diagnosis.findings if f.id != "padding"]
    assert by_run == [f.id for f in by_hand.findings if f.id not in ("compile", "cuda_graphs")]
    reasons = {one.id: one.reason for one in diagnosis.considered}
    assert "earned back after" in reasons["compile"], "the run takes 1,000 steps"


def test_the_terminal_says_it_in_three_lines(diagnosis):
    text = plain(diagnosis, 132)
    assert text.splitlines()[:2] == [
        "WAITING FOR THE CPU to launch kernels and run Python 68 %   81 ms a step",
        "HOST-BOUND · launch · NVIDIA H200 · torch 2.11, CUDA 13.0 · 128 tokens a step",
    ]
    assert (
        "  run        Llama 1.1 B, LoRA r 16 on 7 modules, 12.6 M of 1.1 B trainable, bf16, sdpa, AdamW fused\n"
        "             1,579 tokens/s, 12 samples/s, peak 22.0 of 139.8 GiB\n"
        "             10 steps timed without the profiler: mostly 80–82 ms\n"
    ) in text
    assert "1,579 tokens/s" in diagnosis_html(diagnosis)
