"""An optimizer with a parameter group for each parameter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.case import only, run_of
from helpers.program import MS, US, Program

from gpuprof.calibration import kernels as calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import optimizer
from gpuprof.record.model.trained_model import describe_optimizer

EACH = 100 * US
FUSED = ("aten::_fused_adamw_",)
LISTS = ("aten::_foreach_mul_", "aten::_foreach_lerp_", "aten::_foreach_mul_", "aten::_foreach_addcdiv_")


def stepping(folder, groups: int, ops: tuple[str, ...], described: dict[str, int] | None = None) -> Analysis:
    """Three steps of forward work and an optimizer with ops on lists for each of its groups, 100 µs of CPU time per
    group."""
    program = Program()

    def body() -> None:
        for _ in range(20):
            program.small_mm(20 * US)
        start = program.now
        for _ in range(groups):
            for op in ops:
                program.op(op, "multi_tensor_apply_kernel<FusedAdam>", 2 * US, host=EACH // len(ops))
        program.trace.annotation("Optimizer.step#AdamW.step", start - 1, program.now + 1)
        program.now += 2

    for _ in range(3):
        program.step(body)
    return program.case(folder, replace(run_of(), optimizer=described or {}))


@pytest.mark.parametrize("ops", [FUSED, LISTS])
def test_groups_of_the_same_settings_become_one(tmp_path, ops):
    case = stepping(tmp_path, 50, ops, {"groups": 50, "distinct_groups": 2})
    proposal = only(optimizer, case, "groups")
    left = 2 / 50 + (1 - 2 / 50) * calibrated.GROUPS_TENSORS.value
    then = case.step_of(proposal.change(case.graph))
    assert then == pytest.approx(20 * 20 * US + left * 50 * EACH, rel=0.05)
    assert proposal.odds == 1 and "steps 50 parameter groups" in proposal.evidence[0].text


def test_without_the_settings_it_is_likely_only(tmp_path):
    proposal = only(optimizer, stepping(tmp_path, 50, FUSED), "groups")
    assert proposal.odds == calibrated.GROUPS_ODDS.value and proposal.needs


@pytest.mark.parametrize(("groups", "described"), [(4, {}), (50, {"groups": 50, "distinct_groups": 40})])
def test_few_groups_or_different_ones_stay(tmp_path, groups, described):
    case = stepping(tmp_path, groups, FUSED, described)
    assert "groups" not in {one.key for one in optimizer.find(case)}
    assert case.step_ns < 10 * MS


def test_matrices_that_are_orthogonalised_one_by_one_are_no_groups(tmp_path):
    case = stepping(tmp_path, 50, ("aten::_foreach_add_", "aten::mm"))
    assert "groups" not in {one.key for one in optimizer.find(case)}


def test_the_recorder_counts_settings_that_differ():
    layers = [torch.nn.Linear(2, 2) for _ in range(6)]
    each = [{"params": [p], "weight_decay": 0.0 if p.ndim == 1 else 0.1} for one in layers for p in one.parameters()]
    found = describe_optimizer(torch.optim.AdamW(each, lr=1e-3))
    assert (found["groups"], found["distinct_groups"]) == (12, 2)
    rates = [{"params": one.parameters(), "lr": torch.tensor(1e-3)} for one in layers]
    assert describe_optimizer(torch.optim.AdamW(rates))["distinct_groups"] == 6, "rates on a GPU are not read"
