"""Gradients that are added to those that an optimizer has used, where the shapes of its tensors do not show: with real
autograd and optimizers on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.case import case_of
from helpers.cpu_recording import recorded

from gpuprof.diagnosis.findings import discarded_gradients
from gpuprof.diagnosis.findings.discarded_gradients import PASSED

torch = pytest.importorskip("torch")
FEW, MANY = 4, 16
"""Layers of a network: torch records the shapes of an optimizer's list only up to 30 tensors."""


def net(width: int, layers: int):
    parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(torch.nn.Linear(8, width), *parts, torch.nn.Linear(width, 8))


def adversarial(layers: int, frozen: bool = False, detached: bool = True):
    """A judge and a generator; frozen: the judge while the generator learns."""
    judge, generator, x = net(16, layers), net(12, layers), torch.randn(4, 8)
    judging, making = (torch.optim.SGD(one.parameters(), lr=0.01, foreach=True) for one in (judge, generator))

    def step(_: int) -> None:
        fake = generator(x)
        judging.zero_grad()
        judge(fake.detach() if detached else generator(x)).mean().backward()
        judging.step()
        judge.requires_grad_(not frozen)
        making.zero_grad()
        judge(fake).mean().backward()
        making.step()
        judge.requires_grad_(True)

    return step


def two_heads():
    """Two losses of one encoder. The second optimizer has the encoder, which it updates by the gradients of both."""
    encoder, first, second, x = net(12, MANY), net(16, MANY), net(20, MANY), torch.randn(4, 8)
    one = torch.optim.SGD(first.parameters(), lr=0.01, foreach=True)
    other = torch.optim.SGD([*encoder.parameters(), *second.parameters()], lr=0.01, foreach=True)

    def step(_: int) -> None:
        for head, optimizer in ((first, one), (second, other)):
            head(encoder(x)).mean().backward()
            optimizer.step()
        one.zero_grad()
        other.zero_grad()

    return step


def accumulated():
    """Four micro-batches for each step of two optimizers."""
    model, head, x = net(12, FEW), net(16, FEW), torch.randn(4, 8)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (model, head)]

    def step(_: int) -> None:
        for _ in range(4):
            head(model(x)).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


@pytest.mark.parametrize(
    ("make", "layers"),
    [
        pytest.param(lambda: adversarial(MANY), MANY, id="by order"),
        pytest.param(lambda: adversarial(MANY, detached=False), MANY, id="not detached"),
        pytest.param(lambda: adversarial(MANY, frozen=True), 0, id="frozen"),
        pytest.param(two_heads, 0, id="used later"),
        pytest.param(accumulated, 0, id="accumulated"),
    ],
)
def test_gradients_that_another_loss_clears(tmp_path: Path, make: Any, layers: int):
    case = case_of(recorded(tmp_path / "trace.json", make()), as_recorded=True)
    found = [one for one in discarded_gradients.find(case) if one.key == PASSED]
    assert len(found) == bool(layers)
    for proposal in found:
        assert f"gradients of {2 * (layers + 2)} others" in proposal.evidence[0].text
        gone = case.graph.on_gpu & (proposal.change(case.graph).duration_ns == 0)
        assert gone.sum() == (layers + 2) * case.steps, "one matmul for each of the judge's weights"


@pytest.mark.parametrize("layers", [FEW, MANY])
def test_the_end_of_a_pass_is_not_on_the_way(tmp_path: Path, layers: int):
    """The judge's loss goes on to the generator, whose gradients are cleared."""
    step = adversarial(layers, frozen=True, detached=False)
    case = case_of(recorded(tmp_path / "trace.json", step), as_recorded=True)
    (found,) = discarded_gradients.find(case)
    assert found.key != PASSED and f"to {2 * (layers + 2)} gradients" in found.evidence[0].text


def test_only_the_pass_of_the_other_loss_computes_them_in_vain(tmp_path: Path):
    """All gradients are cleared before each of the two passes, which then make the same ones."""
    judge, generator, x = net(16, FEW), net(12, FEW), torch.randn(4, 8)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (judge, generator)]

    def step(_: int) -> None:
        for optimizer in optimizers:
            for one in optimizers:
                one.zero_grad()
            judge(generator(x)).mean().backward()
            optimizer.step()

    case = case_of(recorded(tmp_path / "trace.json", step), as_recorded=True)
    (passed,) = (one for one in discarded_gradients.find(case) if one.key == PASSED)
    gone = case.graph.on_gpu & (passed.change(case.graph).duration_ns == 0)
    assert gone.sum() == (FEW + 2) * case.steps
