"""Optimizers that loop over parameters, and those with a kernel for all of them."""

from __future__ import annotations

import pytest
from helpers.case import only, shown, with_facts
from helpers.eager_program import eager
from helpers.program import US, Program

from gpuprof.calibration import kernels as kernels_calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import optimizer


def _optimizer(tmp_path, name: str, op: str, count: int, late: int = 0) -> Analysis:
    """late: how long after the end of the step the optimizer's range ends."""

    def end(program: Program):
        start = program.now
        for _ in range(count):
            program.op(op, kernel="multi_tensor_apply_kernel<FusedAdam>", gpu=20 * US)
        program.trace.annotation(f"Optimizer.step#{name}.step", start - 1 * US, program.now + 1 * US + late)
        program.now += 2 * US

    return eager(tmp_path, end=end)


def test_a_loop_over_parameters_becomes_one_kernel(tmp_path):
    case = _optimizer(tmp_path, "AdamW", "aten::addcdiv_", 600)
    proposal = only(optimizer, case)
    saved = 600 * 20 * US * (1 - kernels_calibrated.OPTIMIZER_LOOP_HOST.rising[1])
    # Launched last, the fused kernel is what the next step's first kernels wait for, or next to that step's host work.
    tail = 600 * 20 * US * kernels_calibrated.OPTIMIZER_GPU.rising[1]
    step = case.step_of(proposal.change(case.graph))
    assert 0.99 * (case.step_ns - saved) <= step <= case.step_ns - saved + tail
    assert str(proposal.fix) == "torch.optim.AdamW(..., fused=True)"


def test_a_profiler_that_steps_within_the_optimizer(tmp_path):
    """The next step's range then begins within the optimizer's, and its times lie within it."""
    case = _optimizer(tmp_path, "AdamW", "aten::_foreach_mul_", 40, late=5 * US)
    assert ": 40 kernels a step" in only(optimizer, case).evidence[0].text


@pytest.mark.parametrize(("name", "op"), [("AdamW", "aten::_fused_adamw_"), ("AdamW8bit", "aten::_foreach_mul_")])
def test_no_fused_optimizer_where_there_is_none_or_it_is_fused(tmp_path, name, op):
    assert not list(optimizer.find(_optimizer(tmp_path, name, op, 8)))


@pytest.mark.parametrize(("torch", "offered"), [("2.11.0+cu130", False), ("2.13.0+cu130", True), (None, False)])
def test_adagrad_is_fused_where_torch_can(tmp_path, torch: str | None, offered: bool):
    case = _optimizer(tmp_path, "Adagrad", "aten::_foreach_mul_", 8)
    versions = {} if torch is None else {"torch_version": torch}
    assert bool(list(optimizer.find(with_facts(case, versions=versions)))) == offered


def test_a_small_optimizer_is_within_the_noise(tmp_path):
    assert not shown(optimizer, _optimizer(tmp_path, "AdamW", "aten::_foreach_mul_", 6))
