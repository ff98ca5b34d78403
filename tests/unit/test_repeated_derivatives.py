"""Derivatives of one output by several inputs, with real autograd on the CPU: one call leaves the rest of the work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.case import case_of
from helpers.cpu_recording import MATMULS, recorded

from gpuprof.diagnosis.detect.repeated.gradient_penalties import find_penalties
from gpuprof.diagnosis.findings import repeated_backward

STEPS = 2


def residual(way: str, second: bool = True):
    """A step on u_t + u u_x = u_xx (and u_tt). way: how the derivatives of the network are computed."""
    import torch
    from torch import nn

    layers = [part for _ in range(4) for part in (nn.Linear(8, 8), nn.Tanh())]
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), *layers, nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, t = (torch.randn(16, 1, requires_grad=True) for _ in range(2))
    both = torch.randn(16, 2, requires_grad=True)
    ones = torch.ones(16, 1)

    def grad(y: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if way == "sum":
            return torch.autograd.grad(y.sum(), inputs, create_graph=True)
        along = torch.randn_like(y) if way == "directions" else torch.ones_like(y)
        return torch.autograd.grad(y, inputs, along, create_graph=True)

    def step(_: int) -> None:
        optimizer.zero_grad()
        if way == "columns":
            u = net(both)
            u_x, u_t = grad(u, both)[0][:, :1], grad(u, both)[0][:, 1:]
            loss = (u_t + u * u_x).square().mean()
        elif way == "outputs":
            u = net(torch.cat((x, t), 1))
            u_x, v_x = grad(u, x)[0], grad(u * ones, x)[0]
            loss = (u_x + v_x).square().mean()
        else:
            u = net(torch.cat((x, t), 1))
            u_x, u_t = grad(u, x, t) if way == "once" else (grad(u, x)[0], grad(u, t)[0])
            more = grad(u_x, x)[0] + grad(u_t, t)[0] if second else 0
            loss = (u_t + u * u_x - more).square().mean()
        loss.backward()
        optimizer.step()

    return step


def matmuls(path: Path) -> int:
    return sum(one["name"] in MATMULS for one in json.loads(path.read_text())["traceEvents"])


@pytest.mark.parametrize(("way", "second"), [("ones", True), ("ones", False), ("sum", True)])
def test_one_call_leaves_the_work_that_it_would_do(tmp_path: Path, way: str, second: bool):
    once = matmuls(recorded(tmp_path / "once.json", residual("once", second), count=STEPS))
    case = case_of(recorded(tmp_path / "trace.json", residual(way, second), count=STEPS), as_recorded=True)
    (found,) = repeated_backward.find(case)
    assert "1 calls of torch.autograd.grad" in found.evidence[0].text
    left = found.change(case.graph)
    assert int((left.on_gpu & (left.duration_ns > 0)).sum()) == pytest.approx(once, abs=2 * STEPS)


def test_columns_of_one_input(tmp_path: Path):
    case = case_of(recorded(tmp_path / "trace.json", residual("columns"), count=STEPS), as_recorded=True)
    assert [one.key for one in repeated_backward.find(case)] == ["derivatives"]


@pytest.mark.parametrize("way", ["once", "directions", "outputs"])
def test_one_pass_for_each_output_and_direction_is_needed(tmp_path: Path, way: str):
    case = case_of(recorded(tmp_path / "trace.json", residual(way, second=False), count=STEPS), as_recorded=True)
    assert not list(repeated_backward.find(case))
    assert find_penalties(case) is None, "coordinates are no pictures"
