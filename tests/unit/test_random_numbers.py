"""Random numbers that the CPU makes while the GPU waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.program import MS, US, Program

from gpuprof.diagnosis.findings import host_preprocessing
from gpuprof.diagnosis.fixes.predicted_step import predict


def training(noise_us: int, on_gpu: bool = False) -> Program:
    """Each step makes noise, on the CPU or with a kernel, and copies it to the GPU before it is used."""
    program = Program()

    def body() -> None:
        start = program.now
        if on_gpu:
            program.op("aten::randn", "void at::native::distribution_elementwise", 50 * US, inner=("aten::normal_",))
        else:
            program.op("aten::randn", host=noise_us * US, inner=("aten::normal_",))
        program.trace.annotation("noise", start, program.now)
        for _ in range(40):
            program.small_mm(gpu=200 * US)
        program.backward(lambda: program.small_mm(gpu=200 * US), 40)
        program.synchronize()

    for _ in range(4):
        program.step(body)
    return program


def test_noise_made_on_the_cpu_belongs_on_the_gpu(tmp_path: Path):
    case = training(12_000).case(tmp_path)
    (found,) = host_preprocessing.find(case)
    assert found.title == "random numbers made on the GPU" and 'device="cuda"' in str(found.fix)
    assert found.evidence[0].text.startswith("random numbers made on the CPU (aten::randn) take it 12")
    assert predict(case, found).expected == pytest.approx(case.step_ns - 12 * MS, rel=0.02)


@pytest.mark.parametrize("program", [training(0, on_gpu=True), training(300)], ids=["on the GPU", "little of it"])
def test_noise_that_costs_nothing_is_left_alone(tmp_path: Path, program: Program):
    assert not list(host_preprocessing.find(program.case(tmp_path)))
