"""Gradients of weights that no optimizer has, in a trace: with real autograd and optimizers on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.case import case_of, run_of
from helpers.cpu_recording import recorded
from helpers.quick import few

from gpuprof.diagnosis.findings import discarded_gradients, idle_gradients
from gpuprof.record.model.trained_model import held_by_optimizers, idle_modules

torch = pytest.importorskip("torch")
LAYERS = 4
OF_LOSS = 2 * (LAYERS + 2)
"""Weights and biases of a network."""


def net(width: int = 12):
    layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(torch.nn.Linear(8, width), *layers, torch.nn.Linear(width, 8))


def encoders(frozen: bool = False, first: bool = False, passes: int = 1, keep: bool = False):
    """A trained encoder and one in eval(); first: the latter is called first; keep: gradients are set to zero."""
    asking, answering, x = net(), net().eval().requires_grad_(not frozen), torch.randn(4, 8)
    optimizer = torch.optim.SGD(asking.parameters(), lr=0.01)

    def step(_: int) -> None:
        for _ in range(passes):
            answers = answering(x) if first else None
            asked = asking(x)
            (asked[:3] @ (answering(x) if answers is None else answers).T).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not keep)

    return step


def perceptual(frozen: bool):
    """A network whose output and target are compared by the features of another one."""
    model, features, x = net(), net(16).requires_grad_(not frozen), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(_: int) -> None:
        wanted = features(x)
        torch.nn.functional.l1_loss(features(model(x)), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def retained():
    """A trained network; each pass goes through the graphs of the last two forward passes of it."""
    model, x = net(), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(_: int) -> None:
        first = model(x).mean()
        first.backward(retain_graph=True)
        (first + model(x).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


SEEN = {"tensors": OF_LOSS, "idle_modules": [{"name": "Two.answering", "tensors": OF_LOSS, "parameters": 1000}]}
UNSEEN = {"tensors": OF_LOSS}
RARE = {"tensors": OF_LOSS, "idle_modules": []}
"""The recorder has found all weights in optimizers: one of them has not stepped yet."""
OTHER = {"tensors": OF_LOSS, "idle_modules": [{"name": "Two.other", "tensors": 1, "parameters": 8}]}
WEIGHTS, BRANCH = LAYERS + 2, 2 * (LAYERS + 2) - 1
"""Matrix multiplications of a backward pass for weights; all of one whose input needs no gradient."""
CASES = [
    pytest.param(encoders, UNSEEN, discarded_gradients, BRANCH, 0.95, id="encoder"),
    pytest.param(lambda: encoders(frozen=True), UNSEEN, None, 0, 0, id="frozen encoder"),
    pytest.param(lambda: encoders(passes=2), UNSEEN, discarded_gradients, 2 * BRANCH, 0.95, id="two passes"),
    pytest.param(lambda: encoders(first=True), UNSEEN, None, 0, 0, id="may be added to new ones"),
    pytest.param(lambda: encoders(first=True), SEEN, discarded_gradients, BRANCH, 1, id="counted by the recorder"),
    pytest.param(encoders, RARE, None, 0, 0, id="an optimizer that steps rarely"),
    pytest.param(encoders, OTHER, discarded_gradients, BRANCH, 0.85, id="another number"),
    pytest.param(lambda: encoders(keep=True), UNSEEN, None, 0, 0, id="cleared with zeros"),
    pytest.param(encoders, {"tensors": OF_LOSS - 1}, None, 0, 0, id="another optimizer"),
    pytest.param(lambda: perceptual(False), UNSEEN, idle_gradients, BRANCH + WEIGHTS, 0.95, id="loss"),
    pytest.param(lambda: perceptual(True), UNSEEN, None, 0, 0, id="frozen loss"),
    pytest.param(retained, UNSEEN, None, 0, 0, id="retained graph"),
]
QUICK = ["encoder", "may be added to new ones", "counted by the recorder", "loss", "retained graph"]


@pytest.mark.parametrize(("make", "optimizer", "finding", "matmuls", "odds"), few(CASES, QUICK))
def test_what_freezing_removes(
    tmp_path: Path, make: Any, optimizer: dict[str, Any], finding: Any, matmuls: int, odds: float
):
    run = replace(run_of(), optimizer=optimizer)
    case = case_of(recorded(tmp_path / "trace.json", make()), as_recorded=True, run=run)
    found = {one: list(one.find(case)) for one in (discarded_gradients, idle_gradients)}
    assert {one for one, proposals in found.items() if proposals} == ({finding} if finding else set())
    for proposal in found.get(finding, ()):
        gone = case.graph.on_gpu & (proposal.change(case.graph).duration_ns == 0)
        assert gone.sum() == matmuls * case.steps
        assert proposal.odds == odds
        assert ("Two.answering" in proposal.evidence[0].text) == (odds == 1)


def test_modules_of_any_model_in_no_optimizer():
    """The largest ones, and only those with gradients."""

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.vgg, self.other = torch.nn.Linear(8, 2), torch.nn.Linear(8, 2)

    model, loss, held = net(), Loss(), set()
    loss.vgg(model(torch.ones(2, 8))).sum().backward()
    assert idle_modules([model, loss], held) == []
    held = {id(one) for one in model.parameters()}
    assert idle_modules([model, loss], held) == [{"name": "Loss.vgg", "tensors": 2, "parameters": 18}]
    assert idle_modules([loss], held) == []


def test_an_optimizer_that_has_not_stepped_holds_its_tensors():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    assert {id(one) for one in model.parameters()} <= held_by_optimizers()
    assert optimizer.state == {}
