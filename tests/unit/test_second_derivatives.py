"""Programs that differentiate gradients: compiled code and fused kernels have no second derivatives."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import case_of
from helpers.cpu_recording import recorded
from helpers.paths import ROOT

from gpuprof.diagnosis.findings import compile as compiling
from gpuprof.diagnosis.findings import cuda_graphs

SHORT_US = 2.0
"""Kernels that the CPU of the tests launches in more time than they take, however idle it is."""


def penalised(twice: bool):
    """A step with a penalty on the gradient of the input, or without."""
    import torch
    from torch import nn

    layers = [part for _ in range(6) for part in (nn.Linear(8, 8), nn.Tanh())]
    net = nn.Sequential(*layers, nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(16, 8, requires_grad=True)

    def step(_: int) -> None:
        optimizer.zero_grad()
        loss = net(x)
        if twice:
            (slope,) = torch.autograd.grad(loss.sum(), x, create_graph=True)
            loss = loss + slope.square().sum(1, keepdim=True)
        loss.mean().backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("twice", [True, False])
def test_the_program_captures_its_passes_itself(tmp_path: Path, twice: bool):
    path = recorded(tmp_path / "trace.json", penalised(twice), kernel_us=SHORT_US)
    case = case_of(path, as_recorded=True)
    found = list(cuda_graphs.find(case))
    assert [one.title for one in found] == [cuda_graphs.BY_HAND] * twice
    for one in found:
        left = one.change(case.graph)
        assert case.step_of(left) < case.step_ns
        gpu = case.graph.on_gpu
        assert (left.duration_ns[gpu] == case.graph.duration_ns[gpu]).all(), "no kernel is fused"


def test_forces_are_not_compiled():
    """The potential's forces are part of its loss: 2,000 small kernels, and compiling them fails."""
    case = case_of(ROOT / "scenarios/cases/host_reads/recording")
    assert not list(compiling.find(case))
    why = compiling.ABSENT.why(case)
    assert why is not None
    assert "second derivatives" in why
