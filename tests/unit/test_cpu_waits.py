"""A faster CPU gains no more than what the GPU waits for it."""

from __future__ import annotations

import pytest
from helpers.program import MS, US, Program

import gpuprof
from gpuprof.diagnosis.findings import compile
from gpuprof.diagnosis.fixes.predicted_step import predict
from gpuprof.replay.cpu_waits import cpu_waits

LAYERS, PAUSE, LATE = 40, 180 * US, 4 * MS


def launched_early(late: int = LATE) -> Program:
    """Each kernel begins some ms after its launch, for a reason that was not recorded; the CPU goes on meanwhile, and
    each step waits 2 ms for the CPU."""
    program = Program()

    def late_op(op):
        program.free[7] = max(program.idle_at, program.now + late)
        op()
        program.python(PAUSE)

    def layer():
        late_op(program.small_mm)
        late_op(program.elementwise)

    def body():
        for _ in range(LAYERS):
            layer()
        program.backward(layer, LAYERS)
        program.synchronize()
        program.python(2 * MS)

    for _ in range(4):
        program.step(body)
    return program


def test_cpu_time_behind_other_waits_gains_nothing(tmp_path):
    case = launched_early().case(tmp_path)
    waits = cpu_waits(case.graph)
    assert waits.launched_ns > waits.cpu_ns
    assert waits.floor_ns == pytest.approx(case.step_ns - waits.cpu_ns, rel=0.02)
    assert case.sensitivities.host <= 2 * waits.cpu_ns / case.step_ns + 0.01
    (proposal,) = compile.find(case)
    kernels_ns = float(case.graph.duration_ns[case.graph.on_gpu].sum()) / case.steps
    assert predict(case, proposal).expected >= waits.floor_ns - kernels_ns


def test_a_step_that_launches_limit_gains_as_before(tmp_path):
    """Launches of an idle GPU have a latency, which earlier ones hide."""
    case = launched_early(late=0).case(tmp_path)
    assert case.sensitivities.host > 0.95
    assert cpu_waits(case.graph).launched_ns < 0.01 * case.step_ns


def test_waits_for_launched_work_are_a_doubt(tmp_path):
    found = gpuprof.diagnose(launched_early().trace.write(tmp_path / "trace.json"))
    assert found.verdict.bound != "host" or any("already launched" in text for text in found.verdict.doubts)
    plain = gpuprof.diagnose(launched_early(late=0).trace.write(tmp_path / "plain.json"))
    assert plain.verdict.bound == "host"
    assert not any("already launched" in text for text in plain.verdict.doubts)
