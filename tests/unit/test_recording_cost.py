"""What recording is said to have cost: no more than what it adds to the replayed step."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.paths import ROOT
from helpers.program import MS, US, Program

import gpuprof
from gpuprof.diagnosis.diagnosis import Diagnosis
from gpuprof.report.terminal import plain

LAYERS, BEFORE = 100, 8 * MS


def diagnosed(folder: Path, before: int) -> Diagnosis:
    """One step of 100 kernels of 100 µs; the GPU is at work for `before` ns that were launched earlier."""
    program = Program()
    if before:
        program.trace.gpu("nvjet_hsh_128x64", 0, program.now + before)
        program.free[7] = program.now + before

    def body():
        for _ in range(LAYERS):
            program.small_mm(gpu=100 * US)

    program.step(body, sync=True)
    return gpuprof.diagnose(program.trace.write(folder / "trace.json"))


def test_waiting_for_work_of_before_is_no_cost_of_recording(tmp_path):
    found = diagnosed(tmp_path, BEFORE)
    steps, cost = found.steps, found.profiler
    assert steps and cost and steps.estimated_ns and steps.inflation
    assert steps.recorded_ns - steps.estimated_ns > 0.9 * BEFORE
    assert cost.high_ns < 1 * MS
    assert steps.inflation < 1.1
    headline = plain(found, 120)
    assert "ms as recorded)" in headline
    assert "under the profiler" not in headline


def test_without_it_the_step_is_as_long_as_under_the_profiler(tmp_path):
    assert "under the profiler" in plain(diagnosed(tmp_path, 0), 120)


@pytest.mark.parametrize(("name", "passes_before_ms"), [("eager_attention_full", 11), ("eager_attention", 4)])
def test_so_it_is_in_recordings(name, passes_before_ms):
    """Of these steps so much of the time is the one before's, by the replay with all that recording cost."""
    found = gpuprof.diagnose(ROOT / "tests" / "data" / "pairs" / f"{name}.json.gz")
    steps, cost = found.steps, found.profiler
    assert steps and cost and steps.estimated_ns
    more = (steps.recorded_ns - steps.estimated_ns) / MS
    assert cost.typical_ns / MS == pytest.approx(more - passes_before_ms, abs=0.5)
