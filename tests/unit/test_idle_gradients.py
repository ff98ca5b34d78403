"""Gradients that no optimizer uses: counted in the model, and removed from the backward pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.case import run_of
from helpers.program import MS, US, Program

from gpuprof.diagnosis.findings import idle_gradients
from gpuprof.record.model import trained_model

torch = pytest.importorskip("torch")


def model(frozen: bool):
    """A body of two layers and a head, after a backward pass."""
    body = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).requires_grad_(not frozen)
    whole = torch.nn.Sequential(body, torch.nn.Linear(8, 2))
    whole(torch.ones(4, 8)).sum().backward()
    return whole


@pytest.mark.parametrize("frozen", [False, True])
def test_what_lies_below_a_head_is_counted(frozen: bool):
    whole = model(frozen)
    found = trained_model.idle_gradients(whole, {id(p) for p in whole[1].parameters()})
    assert found == dict.fromkeys(("idle_gradients", "idle_below"), 0 if frozen else 2 * (8 * 8 + 8))


def test_layers_above_the_trained_one_are_idle_but_not_below():
    whole = model(frozen=False)
    found = trained_model.idle_gradients(whole, {id(p) for p in whole[0].parameters()})
    assert found == {"idle_gradients": 8 * 2 + 2, "idle_below": 0}


def test_nothing_is_known_where_the_optimizer_has_tensors_of_its_own():
    assert trained_model.idle_gradients(model(frozen=False), {id(torch.ones(1))}) == {}


@pytest.mark.parametrize(("below", "idle", "left"), [(90, 90, 0.1), (0, 90, 1 - 0.45), (0, 15, None), (0, 0, None)])
def test_the_backward_pass_gets_shorter(tmp_path: Path, below: int, idle: int, left: float | None):
    program = Program()

    def layer() -> None:
        program.small_mm(20 * US, 1 * MS)

    def body() -> None:
        for _ in range(5):
            layer()
        program.backward(layer, 10)

    for _ in range(3):
        program.step(body)
    optimizer = {"parameters": 100 - idle, "idle_gradients": idle, "idle_below": below}
    case = program.case(tmp_path, replace(run_of(), optimizer=optimizer))
    found = list(idle_gradients.find(case))
    assert len(found) == (left is not None)
    for one in found:
        assert case.step_of(one.change(case.graph)) == pytest.approx((5 + 10 * (left or 0)) * MS, rel=0.03)
