"""What limits the usual step, where what makes some steps longer limits the mean."""

from __future__ import annotations

import pytest
from helpers.program import US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.verdict.verdict import limit_of_usual_step
from gpuprof.replay.mean_step import MeanStep

KERNELS = 50


def steps(tmp_path, cpu: int, gpu: int) -> Analysis:
    """Steps of kernels that take the CPU and the GPU this long each."""
    program = Program()

    def body() -> None:
        for _ in range(KERNELS):
            program.small_mm(cpu, gpu)

    for _ in range(4):
        program.step(body, sync=True)
    return program.case(tmp_path)


def with_planning(case: Analysis, share: float) -> MeanStep:
    """Steps of which some plan for new shapes, which makes the mean longer by this share."""
    usual = case.step_ns
    return MeanStep(case.graph, usual, usual * (1 + share), lumps_ns={"new_shapes": usual * share})


@pytest.mark.parametrize(("cpu", "gpu", "limit"), [(20 * US, 100 * US, "device"), (100 * US, 20 * US, None)])
def test_the_limit_of_the_usual_step_is_said_where_it_is_another_one(tmp_path, cpu, gpu, limit):
    case = steps(tmp_path, cpu, gpu)
    assert limit_of_usual_step(case.graph, "host", with_planning(case, 0.8)) == limit
    assert limit_of_usual_step(case.graph, "memory", with_planning(case, 0.8)) == (None if limit else "host")


def test_not_where_every_step_is_usual(tmp_path):
    case = steps(tmp_path, 20 * US, 100 * US)
    assert limit_of_usual_step(case.graph, "host", MeanStep(case.graph)) is None
    assert limit_of_usual_step(case.graph, None, with_planning(case, 0.8)) is None
