"""Optimizers that have no fused kernel."""

from __future__ import annotations

import pytest
from helpers.case import only
from helpers.program import US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import optimizer
from gpuprof.diagnosis.reach.ledger import above_reach

TENSORS = 40


def stepped(tmp_path, name: str, *ops: str, outer: str = "") -> Analysis:
    """Steps of a short pass and an optimizer that goes from tensor to tensor, and reads a value of each; `outer`: an
    optimizer that hands over to it."""
    program = Program()

    def body():
        for _ in range(10):
            program.small_mm(10 * US, 10 * US)
        start = program.now - 2
        for _ in range(TENSORS):
            for op in ops:
                program.op(op, kernel="vectorized_elementwise_kernel", gpu=2 * US)
            program.item()
        program.trace.annotation(f"Optimizer.step#{name}.step", start + 1, program.now + 1)
        if outer:
            program.trace.annotation(f"Optimizer.step#{outer}.step", start, program.now + 2)
            program.now += 4

    for _ in range(4):
        program.step(body)
    return program.case(tmp_path)


def test_adamw_takes_the_place_of_a_loop_over_parameters(tmp_path):
    case = stepped(tmp_path, "Adafactor", "aten::mean", "aten::mul_", "aten::add_")
    proposal = only(optimizer, case, "other")
    assert proposal.title == "fused AdamW instead of this optimizer"
    assert proposal.evidence[0].text.startswith("Adafactor goes through one parameter after another")
    assert proposal.changes
    assert proposal.odds < 1
    assert case.step_of(proposal.change(case.graph)) < 0.5 * case.step_ns
    found = above_reach(case, None, ["optimizer"])
    assert found is not None and found.largest[0].finding == "optimizer", "whatever the rule, its step could be shorter"


def test_torch_s_own_optimizers_keep_their_rule(tmp_path):
    """RMSprop has no fused kernel, but updates whole lists; it needs no other optimizer."""
    case = stepped(tmp_path, "RMSprop", "aten::mul_", "aten::addcmul_", "aten::addcdiv_")
    proposal = only(optimizer, case, "lists")
    assert "torch.optim.RMSprop(..., foreach=True)" in str(proposal.fix)
    assert not proposal.changes
    assert proposal.odds == 1
    assert proposal.best is not None
    assert proposal.worst is not None
    best, usual, worst = (case.step_of(one(case.graph)) for one in (proposal.best, proposal.change, proposal.worst))
    assert best < usual < worst < case.step_ns


@pytest.mark.parametrize("ops", [("aten::mm", "aten::add_"), ("aten::mul",)])
def test_not_where_matrices_are_multiplied_or_nothing_is_updated(tmp_path, ops):
    assert not list(optimizer.find(stepped(tmp_path, "Muon", *ops)))


def test_an_optimizer_that_hands_over_is_not_the_one_that_steps(tmp_path):
    case = stepped(tmp_path, "AdamW", "aten::mul_", "aten::addcdiv_", outer="AcceleratedOptimizer")
    assert only(optimizer, case).title == "fused optimizer"
