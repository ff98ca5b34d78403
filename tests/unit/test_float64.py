"""Kernels in float64: half the time in fp32, if they exceed a minimum; not for a metric or two."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.program import GAP, US, Program

from gpuprof.calibration import precision
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import float64

WIDE = "void at::native::vectorized_elementwise_kernel<2, at::native::BinaryFunctor<double, double, double, Mul> >"
KERNELS = 40


def program_with(folder: Path, wide: int, gpu: int) -> Analysis:
    """A GPU-bound step of matrix multiplications and some kernels in float64, each of `gpu` ns."""
    program = Program()

    def body():
        for i in range(KERNELS):
            program.small_mm(10 * US, 100 * US)
            if i < wide:
                program.op("aten::mul", WIDE, gpu, host=10 * US)

    for _ in range(3):
        program.step(body)
    return program.case(folder)


@pytest.mark.parametrize(("gpu", "left"), [(200 * US, precision.FP64_LEFT.value), (2 * US, 1.0)])
def test_what_memory_limits_takes_half(tmp_path: Path, gpu: int, left: float):
    case = program_with(tmp_path, KERNELS, gpu)
    found = list(float64.find(case))
    if gpu == 2 * US:  # 2 % of the GPU's time, in kernels that cannot get shorter
        assert all(case.step_of(one.change(case.graph)) == pytest.approx(case.step_ns, rel=0.01) for one in found)
        return
    proposal = only(float64, case)
    wanted = KERNELS * (100 * US + GAP + left * gpu + GAP)
    assert case.step_of(proposal.change(case.graph)) == pytest.approx(wanted, rel=0.02)
    assert f"{KERNELS} kernels a step compute in float64" in proposal.evidence[0].text and proposal.changes


def test_a_metric_in_float64_is_no_finding(tmp_path: Path):
    assert not list(float64.find(program_with(tmp_path, 1, 40 * US)))
