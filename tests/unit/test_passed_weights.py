"""Backward passes that compute gradients of weights which another loss trains, with real autograd on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import case_of
from helpers.cpu_recording import recorded

from gpuprof.diagnosis.findings import discarded_gradients
from gpuprof.diagnosis.findings.discarded_gradients import PASSED

LAYERS = 3


def net(inside: int, width: int, outside: int):
    from torch import nn

    layers = [part for _ in range(LAYERS) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(inside, width), nn.ReLU(), *layers, nn.Linear(width, outside))


def adversaries(clears: str, fix: str = "", judged: int = 1):
    """A generator and a discriminator of the same width. clears: when gradients are set to None; judged: backward
    passes of the discriminator before its step."""
    import torch

    generator, judge = net(8, 12, 6), net(6, 12, 1)
    generates, judges = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (generator, judge))
    x = torch.randn(4, 8)

    def clear(name: str, *optimizers: torch.optim.Optimizer) -> None:
        for one in optimizers if clears == name else ():
            one.zero_grad()

    def step(_: int) -> None:
        clear("own", judges)
        clear("all", judges, generates)
        fake = generator(x)
        for _ in range(judged):
            judge(fake.detach()).mean().backward()
        judges.step()
        clear("after", judges)
        clear("own", generates)
        clear("all", judges, generates)
        judge.requires_grad_(fix != "frozen")
        judge(fake).mean().backward(inputs=list(generator.parameters()) if fix == "inputs" else None)
        generates.step()
        clear("after", generates, judges)
        judge.requires_grad_(True)

    return step


def together():
    """Two losses of both networks: every gradient is used."""
    import torch

    first, second = net(8, 12, 6), net(6, 12, 1)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (first, second)]
    x = torch.randn(4, 8)

    def step(_: int) -> None:
        for one in optimizers:
            one.zero_grad()
        second(first(x)).mean().backward()
        second(first(x)).square().mean().backward()
        for one in optimizers:
            one.step()

    return step


def at_once():
    """One loss, and an optimizer for each of two networks of the same shapes."""
    import torch

    first, second = net(12, 12, 12), net(12, 12, 12)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (first, second)]
    x = torch.randn(4, 12)

    def step(_: int) -> None:
        second(first(x)).mean().backward()
        for one in optimizers:
            one.step()
            one.zero_grad()

    return step


@pytest.mark.parametrize(
    ("make", "seen"),
    [
        pytest.param(lambda: adversaries("own"), True, id="each clears its own"),
        pytest.param(lambda: adversaries("own", judged=2), True, id="two passes of the discriminator"),
        pytest.param(lambda: adversaries("all"), True, id="all are cleared before each pass"),
        pytest.param(lambda: adversaries("after"), True, id="cleared after a step"),
        pytest.param(lambda: adversaries("own", "inputs"), False, id="inputs"),
        pytest.param(lambda: adversaries("all", "frozen"), False, id="frozen"),
        pytest.param(lambda: adversaries("never"), False, id="nothing is cleared"),
        pytest.param(lambda: together(), False, id="both losses train both"),
        pytest.param(at_once, False, id="an optimizer for each part"),
    ],
)
def test_gradients_on_the_way_to_the_trained_weights(tmp_path: Path, make, seen: bool):
    case = case_of(recorded(tmp_path / "trace.json", make(), count=3), as_recorded=True)
    found = [one for one in discarded_gradients.find(case) if one.key == PASSED]
    assert len(found) == seen
    if found:
        assert f"gradients of {2 * (LAYERS + 2)} others" in found[0].evidence[0].text
        gone = case.graph.on_gpu & (found[0].change(case.graph).duration_ns == 0)
        assert gone.sum() == (LAYERS + 2) * case.steps, "one matrix multiplication for each of the judge's layers"
