"""Derivatives of one output after another through one graph, with real autograd on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import case_of
from helpers.cpu_recording import recorded

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.repeated.derivative_loops import find_derivative_loops
from gpuprof.diagnosis.findings import repeated_backward

STEPS = 2
LAYERS = 6


def jacobian(way: str, outputs: int):
    """A step whose loss needs the derivatives of each output of a network. way: how they are computed."""
    import torch
    from torch import nn

    first = nn.Linear(8, 8)
    layers = [first, nn.Tanh(), *(part for _ in range(LAYERS - 2) for part in (nn.Linear(8, 8), nn.Tanh()))]
    net = nn.Sequential(*layers, nn.Linear(8, outputs))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(16, 8, requires_grad=True)

    def step(_: int) -> None:
        optimizer.zero_grad()
        y = net(x)
        loss = y.square().mean()
        for at in range(outputs):
            if way == "backward":
                y[:, at].sum().backward(retain_graph=True)
            elif way == "samples":
                (slope,) = torch.autograd.grad(y[at].sum(), first.weight, retain_graph=True)
                slope.abs_()
            else:
                along = (
                    torch.randn_like(y)
                    if way == "directions"
                    else torch.nn.functional.one_hot(torch.full((16,), at), outputs).float()
                )
                (slope,) = torch.autograd.grad(y, x, along, create_graph=True)
                loss = loss + slope.square().mean()
        if way != "backward":
            loss.backward()
        optimizer.step()

    return step


def recording(folder: Path, way: str, outputs: int = 8) -> Analysis:
    return case_of(recorded(folder / "trace.json", jacobian(way, outputs), count=STEPS), as_recorded=True)


@pytest.mark.parametrize("way", ["rows", "directions", "samples"])
def test_one_batched_pass_launches_what_a_single_one_does(tmp_path, way: str):
    outputs = 8
    case = recording(tmp_path, way, outputs)
    found = find_derivative_loops(case)
    assert found is not None and found.passes.tolist() == [outputs] * STEPS
    (proposal,) = (one for one in repeated_backward.find(case) if one.key == "outputs")
    assert f"{outputs} calls" in proposal.evidence[0].text
    left, gpu = proposal.change(case.graph), case.graph.on_gpu
    inside = gpu & (found.group >= 0)
    kept = (inside & (left.duration_ns > 0)).sum()
    assert kept == pytest.approx(inside.sum() / outputs, abs=2 * STEPS)
    assert left.duration_ns[inside].sum() == pytest.approx(case.graph.duration_ns[inside].sum(), rel=0.1), "arithmetic"
    assert case.step_of(left) < case.step_ns


@pytest.mark.parametrize(("way", "outputs"), [("rows", 3), ("backward", 8)], ids=["few", "added up"])
def test_not_for_few_outputs_or_gradients_that_are_added(tmp_path, way: str, outputs: int):
    case = recording(tmp_path, way, outputs)
    assert find_derivative_loops(case) is None
